// The trie of added tokens.
#include "rarefy/files/added_tokens.h"

#include <algorithm>

#include "rarefy/base/check.h"

namespace rarefy::files {

void AddedTokens::add(AddedToken token, const std::string& file) {
  constexpr std::size_t kMaxLength = 1024, kMaxTokens = 1 << 20;
  if (token.text.empty()) fail(ErrorCode::BadFile, "E_TOK_ADDED", "{}: added token {} is empty", file, token.id);
  if (token.text.size() > kMaxLength)
    fail(ErrorCode::BadFile, "E_TOK_ADDED", "{}: added token {} has {} bytes, at most {}", file, token.id,
         token.text.size(), kMaxLength);
  if (tokens_.size() == kMaxTokens)
    fail(ErrorCode::BadFile, "E_TOK_ADDED", "{}: more than {} added tokens", file, kMaxTokens);
  std::int32_t node = 0;
  for (const char c : token.text) {
    const std::uint64_t edge = static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(c);
    const auto [found, fresh] = edges_.emplace(edge, static_cast<std::int32_t>(ends_.size()));
    if (fresh) ends_.push_back(-1);
    node = found->second;
  }
  starts_[static_cast<unsigned char>(token.text.front())] = true;
  ends_[static_cast<std::size_t>(node)] = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::longest_at(std::string_view text, bool parse_special) const {
  const AddedToken* longest = nullptr;
  std::int32_t node = 0;
  for (const char c : text) {
    const auto edge = edges_.find(static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(c));
    if (edge == edges_.end()) break;
    node = edge->second;
    const std::int32_t end = ends_[static_cast<std::size_t>(node)];
    if (end < 0) continue;
    const AddedToken& token = tokens_[static_cast<std::size_t>(end)];
    if (parse_special || !token.special) longest = &token;
  }
  return longest;
}

void AddedTokens::split(std::string_view text, bool parse_special, const std::function<void(std::string_view)>& plain,
                        const std::function<void(const AddedToken&)>& token) const {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* found =
        starts_[static_cast<unsigned char>(text[at])] ? longest_at(text.substr(at), parse_special) : nullptr;
    if (found == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + found->text.size();
    if (found->strip_left)
      while (begin > done && kSpace.find(text[begin - 1]) != std::string_view::npos) --begin;
    if (found->strip_right)
      while (end < text.size() && kSpace.find(text[end]) != std::string_view::npos) ++end;
    if (begin > done) plain(text.substr(done, begin - done));
    token(*found);
    at = done = end;
  }
  if (done < text.size()) plain(text.substr(done));
}

}  // namespace rarefy::files
