// Chat formats as built-in renderers, chosen by recognising the file's template; no template is ever executed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "rarefy/files/tokenizer.h"

namespace rarefy::files {

enum class ChatFormat { ChatMl, Llama3, Mistral, Qwen3, MiniCpm };

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

std::string_view to_string(ChatFormat format);

/// The format that a Jinja template source denotes, by the markers it holds; empty source: ChatMl if the vocabulary has
/// <|im_start|>. Throws Unsupported (E_CHAT_TEMPLATE) listing the known formats if none matches.
ChatFormat detect_chat_format(std::string_view jinja, const Tokenizer& tokenizer);

/// Token ids of a conversation, ready for the assistant's next turn if `add_generation_prompt` (bos included where the
/// format has it). Control tokens come from the format alone: message text is encoded with Specials::AsText.
///   Throws BadInput on an unknown role, or on an order of roles that the format forbids.
std::vector<TokenId> render_chat(ChatFormat format, const Tokenizer& tokenizer,
                                 const std::vector<ChatMessage>& messages, bool add_generation_prompt = true);

}  // namespace rarefy::files
