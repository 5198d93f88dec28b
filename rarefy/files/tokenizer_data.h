// What a tokenizer is made of: filled by the readers of GGUF and of tokenizer.json, used by Tokenizer.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rarefy/files/added_tokens.h"
#include "rarefy/files/bpe.h"
#include "rarefy/files/pre_tokenizer.h"
#include "rarefy/files/tokenizer.h"

namespace rarefy::files {

struct Tokenizer::Impl {
  enum class Kind { ByteLevel, SentencePiece };

  std::string file;  // for messages
  std::string name;  // of kind and pre-tokenizer, for people
  Kind kind = Kind::ByteLevel;
  std::vector<std::string> tokens;  // id to the bytes that the token stands for; SentencePiece: with U+2581 for spaces
  std::vector<bool> special;        // id to whether it is a control token
  std::vector<bool> added;          // id to whether its text stands for itself, outside the model's alphabet
  std::unordered_map<std::string, TokenId> ids;  // bytes to id, special and added tokens included
  Bpe bpe;
  std::array<TokenId, 256> bytes{};  // byte to its token, -1: none
  std::vector<bool> is_byte;         // id to whether it is a byte fallback token
  std::optional<TokenId> unknown;
  bool fuse_unknown = false;
  bool ignore_merges = false;

  // Before the model, in this order: normalisation, then each pattern splits what the one before left.
  std::vector<UnicodeForm> forms;
  std::vector<std::pair<std::string, std::string>> replacements;
  std::string prepend;                // put before every stretch of plain text
  bool prepend_once = false;          // only before the first stretch of a text
  bool prepend_unless_there = false;  // not where the stretch begins with it already
  bool split_words = false;           // SentencePiece vocabularies whose pre-tokenizer splits at U+2581
  bool strip_first_space = false;     // decoding drops the space that `prepend` put
  std::vector<Pattern> patterns;

  AddedTokens added_tokens;
  std::optional<TokenId> bos;
  bool adds_bos = false;
  std::vector<TokenId> ends;
  std::string chat_template;

  /// Sets the size of the vocabulary. Throws BadFile if it is empty or above 2^24.
  void resize(std::size_t vocab);
  /// Gives `id` its bytes. If another id has them already, that one encodes and both decode.
  void set(TokenId id, std::string text);
  void add(AddedToken token);
  /// Fills `bytes` from the tokens, `ends` from well-known names. A byte that the vocabulary lacks becomes `unknown`.
  void finish();
  /// Adds merge number `rank` of two token texts. Throws BadFile (E_TOK_MERGE) naming index and token.
  void merge(const std::string& left, const std::string& right, std::int32_t rank);

  void encode_plain(std::string_view text, bool first, std::vector<TokenId>& out) const;
  void encode_piece(std::string_view piece, std::vector<TokenId>& out) const;
  void split(std::string_view text, std::size_t pattern, std::vector<TokenId>& out) const;
};

/// GPT-2's printable alphabet: the text that byte-level vocabularies write for raw bytes, and back. `from_alphabet`
/// gives nullopt if the text holds a character outside the alphabet.
std::string to_alphabet(std::string_view bytes);
std::optional<std::string> from_alphabet(std::string_view text);

/// Value of a byte fallback token "<0xAB>", -1 for any other text.
int byte_token_value(std::string_view text);

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

}  // namespace rarefy::files
