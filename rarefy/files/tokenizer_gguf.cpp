// Tokenizers from GGUF metadata.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>

#include "rarefy/base/check.h"
#include "rarefy/files/gguf.h"
#include "rarefy/files/tokenizer_data.h"

namespace rarefy::files {
namespace {

/// GGUF's token types.
enum TokenType : std::int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

const std::vector<std::string>& required_strings(const Gguf& file, std::string_view key) {
  const auto* values = file.strings(key);
  if (values == nullptr) fail(ErrorCode::BadFile, "E_TOK_KEY", "{}: metadata key '{}' is missing", file.name(), key);
  return *values;
}

std::optional<TokenId> token_key(const Gguf& file, std::string_view key, std::size_t vocab) {
  const auto value = file.integer(key);
  if (!value) return std::nullopt;
  if (*value < 0 || *value >= static_cast<std::int64_t>(vocab))
    fail(ErrorCode::BadFile, "E_TOK_ID", "{}: '{}' is {}, the vocabulary has {} tokens", file.name(), key, *value,
         vocab);
  return static_cast<TokenId>(*value);
}

void choose_patterns(const Gguf& file, Tokenizer::Impl& out);

void byte_level(const Gguf& file, const std::vector<std::int64_t>& types, Tokenizer::Impl& out) {
  const auto& tokens = required_strings(file, "tokenizer.ggml.tokens");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (types[i] == kControl || types[i] == kUserDefined || types[i] == kUnknown) {
      out.add({tokens[i], id, types[i] != kUserDefined, false, false});
    } else {
      const auto bytes = from_alphabet(tokens[i]);
      out.set(id, bytes ? *bytes : tokens[i]);
    }
  }
  const auto& merges = required_strings(file, "tokenizer.ggml.merges");
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::size_t space = merges[i].find(' ', 1);
    if (space == std::string::npos || space + 1 == merges[i].size() ||
        merges[i].find(' ', space + 1) != std::string::npos)
      fail(ErrorCode::BadFile, "E_TOK_MERGE", "{}: merge {} is not two tokens with a space between", file.name(), i);
    const auto left = from_alphabet(std::string_view(merges[i]).substr(0, space));
    const auto right = from_alphabet(std::string_view(merges[i]).substr(space + 1));
    if (!left || !right)
      fail(ErrorCode::BadFile, "E_TOK_MERGE", "{}: merge {} holds a character that is no byte", file.name(), i);
    out.merge(*left, *right, static_cast<std::int32_t>(i));
  }
  choose_patterns(file, out);
}

void choose_patterns(const Gguf& file, Tokenizer::Impl& out) {
  const std::string* pre = file.string("tokenizer.ggml.pre");
  if (pre == nullptr)
    spdlog::warn("{}: no 'tokenizer.ggml.pre': text is split as GPT-2 does, which may not be the model's way",
                 file.name());
  const std::string name = pre == nullptr || *pre == "default" ? "gpt-2" : *pre;
  std::string known;
  for (const PreTokenizerName& candidate : known_pre_tokenizers()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.name);
    if (candidate.name != name) continue;
    for (const std::string_view pattern : candidate.patterns) out.patterns.emplace_back(pattern);
    out.ignore_merges = candidate.ignore_merges;
    if (name == "qwen2") out.forms = {UnicodeForm::Nfc};
    out.name = "byte-level BPE, " + name;
    return;
  }
  fail(ErrorCode::Unsupported, "E_TOK_PRE", "{}: unknown pre-tokenizer '{}' (known: {})", file.name(), name, known);
}

/// Every way to split a token into two tokens is a merge; the better the token's score, the earlier it merges.
void merges_from_scores(const std::vector<std::string>& tokens, const std::vector<std::int64_t>& types,
                        const std::vector<double>& scores, Tokenizer::Impl& out) {
  std::vector<std::size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  std::int32_t rank = -1;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || scores[order[i]] != scores[order[i - 1]]) ++rank;
    const std::string& text = tokens[order[i]];
    if (types[order[i]] != kNormal) continue;
    for (std::size_t cut = character_length(text); cut > 0 && cut < text.size();
         cut += std::max<std::size_t>(1, character_length(std::string_view(text).substr(cut)))) {
      const auto left = out.ids.find(text.substr(0, cut)), right = out.ids.find(text.substr(cut));
      if (left != out.ids.end() && right != out.ids.end())
        out.bpe.add(left->second, right->second, {rank, static_cast<TokenId>(order[i])});
    }
  }
}

void sentence_piece(const Gguf& file, const std::vector<std::int64_t>& types, Tokenizer::Impl& out) {
  out.kind = Tokenizer::Impl::Kind::SentencePiece;
  const auto& tokens = required_strings(file, "tokenizer.ggml.tokens");
  const auto* scores = file.numbers("tokenizer.ggml.scores");
  if (scores == nullptr || scores->size() != tokens.size())
    fail(ErrorCode::BadFile, "E_TOK_SCORES", "{}: {} scores for {} tokens", file.name(),
         scores == nullptr ? 0 : scores->size(), tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (types[i] == kByte && byte_token_value(tokens[i]) < 0)
      fail(ErrorCode::BadFile, "E_TOK_BYTE", "{}: byte token {} is not of the form <0xAB>", file.name(), i);
    if (types[i] == kControl || types[i] == kUserDefined || types[i] == kUnknown)
      out.add({tokens[i], id, types[i] != kUserDefined, false, false});
    else
      out.set(id, tokens[i]);
  }
  merges_from_scores(tokens, types, *scores, out);
  out.replacements = {{" ", std::string(kSpaceMark)}};
  if (file.boolean("tokenizer.ggml.add_space_prefix").value_or(true)) {
    out.prepend = kSpaceMark;
    out.strip_first_space = true;
  }
  out.unknown = token_key(file, "tokenizer.ggml.unknown_token_id", tokens.size());
  out.fuse_unknown = true;
  out.name = "SentencePiece BPE";
}

}  // namespace

Tokenizer Tokenizer::from_gguf(const Gguf& file) {
  auto impl = std::make_unique<Impl>();
  impl->file = file.name();
  const std::string* model = file.string("tokenizer.ggml.model");
  if (model == nullptr)
    fail(ErrorCode::BadFile, "E_TOK_KEY", "{}: metadata key 'tokenizer.ggml.model' is missing", file.name());
  const auto& tokens = required_strings(file, "tokenizer.ggml.tokens");
  impl->resize(tokens.size());
  std::vector<std::int64_t> types(tokens.size(), kNormal);
  if (const auto* given = file.integers("tokenizer.ggml.token_type")) {
    if (given->size() != tokens.size())
      fail(ErrorCode::BadFile, "E_TOK_TYPES", "{}: {} token types for {} tokens", file.name(), given->size(),
           tokens.size());
    types = *given;
  }
  if (*model == "gpt2")
    byte_level(file, types, *impl);
  else if (*model == "llama")
    sentence_piece(file, types, *impl);
  else
    fail(ErrorCode::Unsupported, "E_TOK_MODEL", "{}: unknown tokenizer model '{}' (known: gpt2, llama)", file.name(),
         *model);

  impl->bos = token_key(file, "tokenizer.ggml.bos_token_id", tokens.size());
  // llama.cpp's defaults: SentencePiece vocabularies begin with bos unless the file says otherwise.
  impl->adds_bos =
      file.boolean("tokenizer.ggml.add_bos_token").value_or(impl->kind == Impl::Kind::SentencePiece) && impl->bos;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto id = token_key(file, key, tokens.size())) impl->ends.push_back(*id);
  if (const std::string* source = file.string("tokenizer.chat_template")) impl->chat_template = *source;
  impl->finish();
  return Tokenizer(std::move(impl));
}

}  // namespace rarefy::files
