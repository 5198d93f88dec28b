// Text to token ids and back: byte-level BPE, and SentencePiece-style BPE with byte fallback.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rarefy::files {

class Gguf;

using TokenId = std::int32_t;

/// How `encode` treats the names of special tokens that stand in the text.
enum class Specials { AsText, Parse };

/// A tokenizer, immutable and safe to share between threads.
/// Invalid UTF-8 never fails: byte-level vocabularies encode the bytes, others replace them by U+FFFD.
class Tokenizer {
 public:
  /// From a GGUF file's `tokenizer.ggml.*`. Throws BadFile (ids E_TOK_*, naming token or merge index) or Unsupported
  /// (unknown `tokenizer.ggml.pre` or model; the message lists the known ones). A missing `pre` warns and takes the
  /// default.
  static Tokenizer from_gguf(const Gguf& file);
  /// From Hugging Face's `tokenizer.json` in `folder` (and `tokenizer_config.json` for bos and eos).
  static Tokenizer from_folder(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Token ids of `text`; time linear in its length. With Specials::AsText no special token is ever produced from text.
  /// No begin-of-sequence token is added here: see `adds_bos`.
  std::vector<TokenId> encode(std::string_view text, Specials specials = Specials::AsText) const;

  /// The bytes that one token adds to the output: may be a part of a character. Special tokens give their name if
  /// `show_special`, else nothing. `first`: the token begins the text (SentencePiece drops the leading space there).
  std::string decode(TokenId token, bool show_special = false, bool first = false) const;
  /// The text of a sequence of tokens, bytes as they are.
  std::string decode(const std::vector<TokenId>& tokens, bool show_special = false) const;

  std::int64_t vocab_size() const;
  bool is_special(TokenId token) const;
  std::optional<TokenId> find(std::string_view token) const;  ///< id of an exact vocabulary entry or special token
  std::optional<TokenId> bos() const;
  bool adds_bos() const;                     ///< the model expects bos in front of every text
  const std::vector<TokenId>& ends() const;  ///< tokens that end generation (eos, eot, end of message)
  const std::string& chat_template() const;  ///< the file's Jinja source, empty if none
  std::string describe() const;              ///< one line for `inspect`: kind, pre-tokenizer, sizes

  struct Impl;  // tokenizer_data.h: what the readers fill
  explicit Tokenizer(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

/// Holds back bytes of incomplete UTF-8 characters: push() gives what is complete, finish() one U+FFFD for a broken
/// rest. A byte that can never become valid UTF-8 is replaced by U+FFFD at once.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace rarefy::files
