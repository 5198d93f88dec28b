// Encoding and decoding.
#include "rarefy/files/tokenizer.h"

#include <algorithm>

#include "rarefy/base/check.h"
#include "rarefy/files/tokenizer_data.h"

namespace rarefy::files {
namespace {

/// GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100 on.
struct Alphabet {
  std::array<std::int32_t, 256> character{};
  std::unordered_map<std::int32_t, int> byte;
  Alphabet() {
    std::int32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      character[static_cast<std::size_t>(b)] = printable ? b : next++;
      byte[character[static_cast<std::size_t>(b)]] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.append(text, at, found - at);
    out += to;
  }
  out.append(text, at);
  text = std::move(out);
}

}  // namespace

std::string to_alphabet(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const std::int32_t character = alphabet().character[static_cast<unsigned char>(c)];
    if (character < 0x80) {
      out += static_cast<char>(character);
    } else {
      out += static_cast<char>(0xC0 | character >> 6);
      out += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return out;
}

std::optional<std::string> from_alphabet(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::int32_t character = static_cast<unsigned char>(text[i]);
    if (character >= 0x80) {
      if ((character & 0xE0) != 0xC0 || i + 1 == text.size()) return std::nullopt;
      character = (character & 0x1F) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F);
    }
    const auto found = alphabet().byte.find(character);
    if (found == alphabet().byte.end()) return std::nullopt;
    out += static_cast<char>(found->second);
  }
  return out;
}

int byte_token_value(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return -1;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

void Tokenizer::Impl::resize(std::size_t vocab) {
  constexpr std::size_t kMaxVocab = 1 << 24;
  if (vocab == 0 || vocab > kMaxVocab)
    fail(ErrorCode::BadFile, "E_TOK_VOCAB", "{}: a vocabulary of {} tokens, must be 1 to {}", file, vocab, kMaxVocab);
  tokens.resize(vocab);
  special.resize(vocab);
  added.resize(vocab);
  is_byte.resize(vocab);
}

void Tokenizer::Impl::set(TokenId id, std::string text) {
  tokens[static_cast<std::size_t>(id)] = text;
  ids.emplace(std::move(text), id);  // the first of equal texts encodes; the others can still be decoded
}

void Tokenizer::Impl::add(AddedToken token) {
  if (token.id < 0)
    fail(ErrorCode::BadFile, "E_TOK_ADDED", "{}: added token '{}' has id {}", file, token.text, token.id);
  const auto at = static_cast<std::size_t>(token.id);
  if (at >= tokens.size()) resize(at + 1);
  tokens[at] = token.text;
  ids[token.text] = token.id;
  special[at] = token.special;
  added[at] = true;
  added_tokens.add(std::move(token), file);
}

void Tokenizer::Impl::merge(const std::string& left, const std::string& right, std::int32_t rank) {
  const auto find = [&](const std::string& text) {
    const auto found = ids.find(text);
    if (found == ids.end())
      fail(ErrorCode::BadFile, "E_TOK_MERGE", "{}: merge {}: token '{}' is not in the vocabulary", file, rank,
           replace_invalid(text));
    return found->second;
  };
  const TokenId a = find(left), b = find(right);
  bpe.add(a, b, {rank, find(left + right)});
}

void Tokenizer::Impl::finish() {
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    const auto at = static_cast<std::size_t>(byte);
    if (kind == Kind::ByteLevel) {
      const auto found = ids.find(std::string(1, static_cast<char>(byte)));
      // Bytes that never stand in UTF-8 text are missing from some vocabularies.
      if (found != ids.end()) bytes[at] = found->second;
    }
  }
  if (kind == Kind::SentencePiece)
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      const int value = byte_token_value(tokens[id]);
      if (value < 0) continue;
      is_byte[id] = true;
      bytes[static_cast<std::size_t>(value)] = static_cast<TokenId>(id);
    }
  for (const char* end : {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>"}) {
    const auto found = ids.find(end);
    if (found != ids.end() && special[static_cast<std::size_t>(found->second)]) ends.push_back(found->second);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

void Tokenizer::Impl::encode_piece(std::string_view piece, std::vector<TokenId>& out) const {
  if (ignore_merges) {
    const auto whole = ids.find(std::string(piece));
    if (whole != ids.end() && !added[static_cast<std::size_t>(whole->second)]) {
      out.push_back(whole->second);
      return;
    }
  }
  thread_local std::vector<TokenId> symbols;
  symbols.clear();
  const auto byte = [&](char c) {
    const TokenId id = bytes[static_cast<unsigned char>(c)];
    if (id >= 0)
      symbols.push_back(id);
    else if (unknown)
      symbols.push_back(*unknown);
  };
  if (kind == Kind::ByteLevel) {
    for (const char c : piece) byte(c);
  } else {
    for (std::size_t i = 0; i < piece.size();) {
      const std::size_t length = std::max<std::size_t>(1, character_length(piece.substr(i)));
      const auto found = ids.find(std::string(piece.substr(i, length)));
      if (found != ids.end() && !added[static_cast<std::size_t>(found->second)]) {
        symbols.push_back(found->second);
      } else if (std::all_of(piece.begin() + static_cast<std::ptrdiff_t>(i),
                             piece.begin() + static_cast<std::ptrdiff_t>(i + length),
                             [&](char c) { return bytes[static_cast<unsigned char>(c)] >= 0; })) {
        for (std::size_t j = i; j < i + length; ++j) byte(piece[j]);
      } else if (unknown && !(fuse_unknown && !symbols.empty() && symbols.back() == *unknown)) {
        symbols.push_back(*unknown);
      }
      i += length;
    }
  }
  bpe.apply(symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void Tokenizer::Impl::split(std::string_view text, std::size_t pattern, std::vector<TokenId>& out) const {
  if (pattern == patterns.size()) {
    encode_piece(text, out);
    return;
  }
  patterns[pattern].split(text, [&](std::string_view piece) { split(piece, pattern + 1, out); });
}

void Tokenizer::Impl::encode_plain(std::string_view text, bool first, std::vector<TokenId>& out) const {
  std::string owned = kind == Kind::ByteLevel ? std::string(text) : replace_invalid(text);
  for (const UnicodeForm form : forms) owned = normalize(owned, form);
  const bool prefix = !prepend.empty() && (first || !prepend_once);
  if (kind == Kind::SentencePiece) {
    // Metaspace puts its mark after replacing, Prepend before: equal, since the mark itself is never replaced.
    for (const auto& [from, to] : replacements) replace_all(owned, from, to);
  }
  if (prefix && !(prepend_unless_there && owned.starts_with(prepend))) owned.insert(0, prepend);
  if (!split_words) return split(owned, 0, out);
  for (std::size_t at = 0; at < owned.size();) {
    const std::size_t next = owned.find(kSpaceMark, at + 1);
    const std::size_t end = next == std::string::npos ? owned.size() : next;
    split(std::string_view(owned).substr(at, end - at), 0, out);
    at = end;
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, Specials specials) const {
  CHECK(text.size() < INT32_MAX, "a text of {} bytes, at most {}", text.size(), INT32_MAX - 1);
  std::vector<TokenId> out;
  bool first = true;
  impl_->added_tokens.split(
      text, specials == Specials::Parse,
      [&](std::string_view plain) {
        impl_->encode_plain(plain, first, out);
        first = false;
      },
      [&](const AddedToken& token) {
        out.push_back(token.id);
        first = false;
      });
  return out;
}

std::string Tokenizer::decode(TokenId token, bool show_special, bool first) const {
  CHECK(token >= 0 && token < vocab_size(), "token {} is not in [0, {})", token, vocab_size());
  const auto at = static_cast<std::size_t>(token);
  if (impl_->special[at]) return show_special ? impl_->tokens[at] : "";
  std::string text = impl_->tokens[at];
  if (impl_->kind == Impl::Kind::ByteLevel || impl_->added[at]) return text;
  if (impl_->is_byte[at]) return std::string(1, static_cast<char>(byte_token_value(text)));
  replace_all(text, std::string(kSpaceMark), " ");
  if (first && impl_->strip_first_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string Tokenizer::decode(const std::vector<TokenId>& tokens, bool show_special) const {
  std::string out;
  bool first = true;
  for (const TokenId token : tokens) {
    out += decode(token, show_special, first);
    // Special tokens that are not shown leave the next token the first of the text.
    first = first && impl_->special[static_cast<std::size_t>(token)] && !show_special;
  }
  return out;
}

std::int64_t Tokenizer::vocab_size() const { return static_cast<std::int64_t>(impl_->tokens.size()); }
bool Tokenizer::is_special(TokenId token) const {
  return token >= 0 && token < vocab_size() && impl_->special[static_cast<std::size_t>(token)];
}
std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  const auto found = impl_->ids.find(std::string(token));
  return found == impl_->ids.end() ? std::nullopt : std::optional(found->second);
}
std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
bool Tokenizer::adds_bos() const { return impl_->adds_bos; }
const std::vector<TokenId>& Tokenizer::ends() const { return impl_->ends; }
const std::string& Tokenizer::chat_template() const { return impl_->chat_template; }
std::string Tokenizer::describe() const {
  return fmt::format("{}, {} tokens, {} merges, {} added", impl_->name, impl_->tokens.size(), impl_->bpe.size(),
                     impl_->added_tokens.tokens().size());
}

}  // namespace rarefy::files
