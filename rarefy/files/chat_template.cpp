// Recognition and rendering of the chat formats.
#include "rarefy/files/chat_template.h"

#include <array>

#include "rarefy/base/check.h"

namespace rarefy::files {
namespace {

/// Builds token ids: control tokens by name, text with its specials off.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, ChatFormat format) : tokenizer_(tokenizer), format_(format) {}

  void control(std::string_view name) {
    const auto id = tokenizer_.find(name);
    if (!id)
      fail(ErrorCode::BadFile, "E_CHAT_TOKEN", "chat format {} needs the token {}, which the vocabulary lacks",
           to_string(format_), name);
    flush();
    out_.push_back(*id);
  }
  /// Neighbouring texts are encoded together, as the rendered template would be.
  void text(std::string_view text) { pending_ += text; }
  std::vector<TokenId> finish() {
    flush();
    return std::move(out_);
  }

 private:
  void flush() {
    if (pending_.empty()) return;
    const std::vector<TokenId> ids = tokenizer_.encode(pending_, Specials::AsText);
    out_.insert(out_.end(), ids.begin(), ids.end());
    pending_.clear();
  }
  const Tokenizer& tokenizer_;
  ChatFormat format_;
  std::string pending_;
  std::vector<TokenId> out_;
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

void check_roles(ChatFormat format, const std::vector<ChatMessage>& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      fail(ErrorCode::BadInput, "E_CHAT_ROLE", "message {}: unknown role '{}' (known: system, user, assistant)", i,
           role);
    if (role == "system" && i > 0)
      fail(ErrorCode::BadInput, "E_CHAT_ROLE", "message {}: a system message must be the first", i);
  }
  if (format != ChatFormat::Mistral) return;
  std::size_t turn = 0;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") continue;
    if (message.role != (turn++ % 2 == 0 ? "user" : "assistant"))
      fail(ErrorCode::BadInput, "E_CHAT_ROLE", "mistral: user and assistant must take turns, beginning with the user");
  }
}

/// The system message that a template puts where none is given, e.g. SmolLM2's and Qwen 2.5's: the text between its
/// opening marker and the end of the turn, in the branch for conversations without one.
std::string default_system(std::string_view jinja) {
  constexpr std::string_view kOpen = "<|im_start|>system";
  for (std::size_t at = jinja.find(kOpen); at != std::string_view::npos; at = jinja.find(kOpen, at + 1)) {
    // The line break is a character of the template, or its escape in a literal.
    std::size_t begin = at + kOpen.size();
    if (jinja.substr(begin).starts_with("\n"))
      begin += 1;
    else if (jinja.substr(begin).starts_with("\\n"))
      begin += 2;
    else
      continue;
    const std::size_t end = jinja.find("<|im_end|>", begin);
    if (end == std::string_view::npos) return "";
    const std::string_view text = jinja.substr(begin, end - begin);
    // A template's expressions leave the literal; only a whole literal is a default.
    if (!text.empty() && text.find_first_of("'\"{}") == std::string_view::npos) return std::string(text);
  }
  return "";
}

void chat_ml(Writer& out, const std::vector<ChatMessage>& messages, const std::string& system, bool generation) {
  if (!system.empty() && (messages.empty() || messages.front().role != "system")) {
    out.control("<|im_start|>");
    out.text("system\n" + system);
    out.control("<|im_end|>");
    out.text("\n");
  }
  for (const ChatMessage& message : messages) {
    out.control("<|im_start|>");
    out.text(message.role + "\n" + message.content);
    out.control("<|im_end|>");
    out.text("\n");
  }
  if (!generation) return;
  out.control("<|im_start|>");
  out.text("assistant\n");
}

void llama3(Writer& out, const std::vector<ChatMessage>& messages, bool generation) {
  const auto header = [&](std::string_view role) {
    out.control("<|start_header_id|>");
    out.text(role);
    out.control("<|end_header_id|>");
    out.text("\n\n");
  };
  out.control("<|begin_of_text|>");
  for (const ChatMessage& message : messages) {
    header(message.role);
    out.text(trimmed(message.content));
    out.control("<|eot_id|>");
  }
  if (generation) header("assistant");
}

void mistral(Writer& out, const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages) {
  // Newer vocabularies have the markers as control tokens, older ones write them as text.
  const bool tokens = tokenizer.find("[INST]").has_value() && tokenizer.is_special(*tokenizer.find("[INST]"));
  const auto mark = [&](std::string_view name) { tokens ? out.control(name) : out.text(name); };
  if (tokenizer.bos()) out.control("<s>");
  std::string system;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      system = message.content + "\n\n";
    } else if (message.role == "user") {
      mark("[INST]");
      out.text(" " + system + message.content);
      out.text(tokens ? "" : " ");
      mark("[/INST]");
      system.clear();
    } else {
      out.text(" " + std::string(trimmed(message.content)));
      out.control("</s>");
    }
  }
}

}  // namespace

std::string_view to_string(ChatFormat format) {
  constexpr std::array<std::string_view, 5> kNames = {"chatml", "llama3", "mistral", "qwen3", "minicpm"};
  return kNames[static_cast<std::size_t>(format)];
}

ChatFormat detect_chat_format(std::string_view jinja, const Tokenizer& tokenizer) {
  const auto has = [&](std::string_view marker) { return jinja.find(marker) != std::string_view::npos; };
  if (has("<|start_header_id|>")) return ChatFormat::Llama3;
  if (has("[INST]")) return ChatFormat::Mistral;
  if (has("<|im_start|>")) {
    if (has("<think>") || has("enable_thinking"))
      return tokenizer.find("<s>") ? ChatFormat::MiniCpm : ChatFormat::Qwen3;
    return tokenizer.find("<s>") && tokenizer.adds_bos() ? ChatFormat::MiniCpm : ChatFormat::ChatMl;
  }
  if (jinja.empty() && tokenizer.find("<|im_start|>")) return ChatFormat::ChatMl;
  fail(ErrorCode::Unsupported, "E_CHAT_TEMPLATE",
       "the model's chat template is not one of the known formats (chatml, llama3, mistral, qwen3, minicpm)");
}

std::vector<TokenId> render_chat(ChatFormat format, const Tokenizer& tokenizer,
                                 const std::vector<ChatMessage>& messages, bool add_generation_prompt) {
  check_roles(format, messages);
  Writer out(tokenizer, format);
  switch (format) {
    case ChatFormat::ChatMl:
      chat_ml(out, messages, default_system(tokenizer.chat_template()), add_generation_prompt);
      break;
    case ChatFormat::Qwen3:
      chat_ml(out, messages, "", add_generation_prompt);
      break;
    case ChatFormat::MiniCpm:
      if (tokenizer.bos()) out.control("<s>");
      chat_ml(out, messages, "", add_generation_prompt);
      break;
    case ChatFormat::Llama3:
      llama3(out, messages, add_generation_prompt);
      break;
    case ChatFormat::Mistral:
      mistral(out, tokenizer, messages);
      break;
  }
  return out.finish();
}

}  // namespace rarefy::files
