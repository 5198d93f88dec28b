// Tokenizers from Hugging Face's tokenizer.json and the small files beside it.
#include <algorithm>

#include "rarefy/base/check.h"
#include "rarefy/files/json.h"
#include "rarefy/files/tokenizer_data.h"

namespace rarefy::files {
namespace {

using nlohmann::json;

[[noreturn]] void unsupported(const JsonObject& part, const std::string& what) {
  fail(ErrorCode::Unsupported, "E_TOK_PART", "{}: {} is not supported", part.name(), what);
}

/// Calls `one` for a part, or for every part of a Sequence under `list`.
template <typename One>
void each_part(const JsonObject& parent, const char* key, const char* list, One one) {
  if (!parent.has(key)) return;
  const JsonObject part = parent.object(key);
  if (part.string("type") != "Sequence") return one(part);
  for (const json& item : part.array(list)) one(JsonObject(item, part.name() + ": " + list));
}

/// The text or the expression of a pattern object: {"String": ...} or {"Regex": ...}.
std::string pattern_text(const JsonObject& part, bool& regex) {
  const JsonObject pattern = part.object("pattern");
  regex = pattern.has("Regex");
  return pattern.string(regex ? "Regex" : "String");
}

void read_normalizer(const JsonObject& part, Tokenizer::Impl& out) {
  const std::string type = part.string("type");
  if (type == "NFC")
    out.forms.push_back(UnicodeForm::Nfc);
  else if (type == "NFD")
    out.forms.push_back(UnicodeForm::Nfd);
  else if (type == "NFKC")
    out.forms.push_back(UnicodeForm::Nfkc);
  else if (type == "NFKD")
    out.forms.push_back(UnicodeForm::Nfkd);
  else if (type == "Prepend")
    out.prepend = part.string("prepend");
  else if (type == "Replace") {
    bool regex = false;
    std::string from = pattern_text(part, regex);
    if (regex) unsupported(part, "a Replace with a regular expression");
    if (from.empty()) fail(ErrorCode::BadFile, "E_TOK_PART", "{}: Replace of an empty text", part.name());
    out.replacements.emplace_back(std::move(from), part.string("content"));
  } else {
    unsupported(part, "normalizer '" + type + "'");
  }
}

void read_metaspace(const JsonObject& part, Tokenizer::Impl& out) {
  const std::string mark = part.string_if("replacement").value_or(std::string(kSpaceMark));
  if (mark != kSpaceMark) unsupported(part, "Metaspace with another mark than U+2581");
  const bool legacy = part.boolean_if("add_prefix_space").value_or(true);
  const std::string scheme = part.string_if("prepend_scheme").value_or(legacy ? "always" : "never");
  out.replacements.emplace_back(" ", mark);
  if (scheme != "never") out.prepend = mark;
  out.prepend_once = scheme == "first";
  out.prepend_unless_there = true;
  out.split_words = part.boolean_if("split").value_or(true);
}

void read_pre_tokenizer(const JsonObject& part, Tokenizer::Impl& out) {
  const std::string type = part.string("type");
  if (type == "ByteLevel") {
    out.kind = Tokenizer::Impl::Kind::ByteLevel;
    if (part.boolean_if("use_regex").value_or(true)) out.patterns.emplace_back(kGpt2Pattern);
    if (part.boolean_if("add_prefix_space").value_or(false)) {
      out.prepend = " ";
      out.prepend_unless_there = true;
    }
  } else if (type == "Digits") {
    out.patterns.emplace_back(part.boolean_if("individual_digits").value_or(false) ? kDigitPattern
                                                                                   : std::string_view(R"(\p{N}+)"));
  } else if (type == "Split") {
    if (part.string_if("behavior").value_or("Isolated") != "Isolated" || part.boolean_if("invert").value_or(false))
      unsupported(part, "a Split that is not Isolated");
    bool regex = false;
    const std::string text = pattern_text(part, regex);
    out.patterns.emplace_back(regex ? text : R"(\Q)" + text + R"(\E)");
  } else if (type == "Metaspace") {
    read_metaspace(part, out);
  } else {
    unsupported(part, "pre-tokenizer '" + type + "'");
  }
}

void read_vocabulary(const JsonObject& model, Tokenizer::Impl& out) {
  const JsonObject vocab = model.object("vocab");
  std::int64_t highest = -1;
  for (const auto& [token, id] : vocab.value().items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= 1 << 24)
      fail(ErrorCode::BadFile, "E_TOK_ID", "{}: token '{}' has an id that is not in [0, {})", vocab.name(), token,
           1 << 24);
    highest = std::max(highest, id.get<std::int64_t>());
  }
  out.resize(static_cast<std::size_t>(highest + 1));
  for (const auto& [token, id] : vocab.value().items()) {
    std::string text = token;
    if (out.kind == Tokenizer::Impl::Kind::ByteLevel)
      if (auto bytes = from_alphabet(token)) text = std::move(*bytes);
    out.set(id.get<TokenId>(), std::move(text));
  }
}

void read_merges(const JsonObject& model, Tokenizer::Impl& out) {
  std::int32_t rank = 0;
  for (const json& merge : model.array("merges")) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    }
    if (left.empty() || right.empty())
      fail(ErrorCode::BadFile, "E_TOK_MERGE", "{}: merge {} is not two tokens", model.name(), rank);
    if (out.kind == Tokenizer::Impl::Kind::ByteLevel) {
      left = from_alphabet(left).value_or(left);
      right = from_alphabet(right).value_or(right);
    }
    out.merge(left, right, rank++);
  }
}

void read_added(const JsonObject& root, Tokenizer::Impl& out) {
  if (!root.has("added_tokens")) return;
  for (const json& item : root.array("added_tokens")) {
    const JsonObject token(item, root.name() + ": added_tokens");
    const std::int64_t id = token.integer("id");
    if (id < 0 || id >= 1 << 24)
      fail(ErrorCode::BadFile, "E_TOK_ID", "{}: id {} is not in [0, {})", token.name(), id, 1 << 24);
    out.add({token.string("content"), static_cast<TokenId>(id), token.boolean_if("special").value_or(false),
             token.boolean_if("lstrip").value_or(false), token.boolean_if("rstrip").value_or(false)});
  }
}

/// A token named in tokenizer_config.json: a string, or an object with its content.
std::optional<TokenId> named_token(const JsonObject& config, const char* key, const Tokenizer::Impl& impl) {
  if (!config.has(key)) return std::nullopt;
  const json& value = config.value().at(key);
  const std::string text =
      value.is_object() ? JsonObject(value, config.name() + ": " + key).string("content") : config.string(key);
  const auto found = impl.ids.find(text);
  return found == impl.ids.end() ? std::nullopt : std::optional(found->second);
}

void read_tokenizer_config(const std::filesystem::path& path, Tokenizer::Impl& out) {
  if (!std::filesystem::exists(path)) return;
  const json root = read_json(path);
  const JsonObject config(root, path.string());
  out.bos = named_token(config, "bos_token", out);
  if (const auto eos = named_token(config, "eos_token", out)) out.ends.push_back(*eos);
  if (const auto adds = config.boolean_if("add_bos_token")) out.adds_bos = *adds && out.bos;
  if (!config.has("chat_template")) return;
  const json& source = root.at("chat_template");
  if (source.is_string()) {
    out.chat_template = source.get<std::string>();
  } else if (source.is_array()) {  // several templates by name
    for (const json& item : source) {
      const JsonObject named(item, path.string() + ": chat_template");
      if (named.string("name") == "default") out.chat_template = named.string("template");
    }
  }
}

void read_generation_config(const std::filesystem::path& path, Tokenizer::Impl& out) {
  if (!std::filesystem::exists(path)) return;
  const json root = read_json(path);
  const JsonObject config(root, path.string());
  if (!config.has("eos_token_id")) return;
  const json& value = root.at("eos_token_id");
  for (const json& id : value.is_array() ? value : json::array({value}))
    if (id.is_number_unsigned() && id.get<std::uint64_t>() < out.tokens.size()) out.ends.push_back(id.get<TokenId>());
}

/// Whether the post-processor puts bos before a single text.
bool post_processor_adds_bos(const JsonObject& root, const Tokenizer::Impl& impl) {
  bool found = false;
  each_part(root, "post_processor", "processors", [&](const JsonObject& part) {
    if (part.string("type") != "TemplateProcessing") return;
    const json& single = part.array("single");
    if (single.empty() || !single[0].is_object() || !single[0].contains("SpecialToken")) return;
    const auto& special = single[0]["SpecialToken"];
    if (special.is_object() && special.contains("id") && special["id"].is_string() && impl.bos)
      found = special["id"].get<std::string>() == impl.tokens[static_cast<std::size_t>(*impl.bos)];
  });
  return found;
}

}  // namespace

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  const json document = read_json(path);
  const JsonObject root(document, path.string());
  auto impl = std::make_unique<Impl>();
  impl->file = path.string();
  impl->kind = Impl::Kind::SentencePiece;
  each_part(root, "normalizer", "normalizers", [&](const JsonObject& part) { read_normalizer(part, *impl); });
  each_part(root, "pre_tokenizer", "pretokenizers", [&](const JsonObject& part) { read_pre_tokenizer(part, *impl); });

  const JsonObject model = root.object("model");
  if (model.string_if("type").value_or("BPE") != "BPE") unsupported(model, "model '" + model.string("type") + "'");
  read_vocabulary(model, *impl);
  read_merges(model, *impl);
  impl->ignore_merges = model.boolean_if("ignore_merges").value_or(false);
  impl->fuse_unknown = model.boolean_if("fuse_unk").value_or(false);
  if (const auto unknown = model.string_if("unk_token")) {
    const auto found = impl->ids.find(*unknown);
    if (found != impl->ids.end()) impl->unknown = found->second;
  }
  read_added(root, *impl);
  each_part(root, "decoder", "decoders", [&](const JsonObject& part) {
    const std::string type = part.string("type");
    if (type == "Metaspace" || type == "Strip") impl->strip_first_space = !impl->prepend.empty();
  });
  read_tokenizer_config(folder / "tokenizer_config.json", *impl);
  read_generation_config(folder / "generation_config.json", *impl);
  impl->adds_bos = impl->adds_bos || post_processor_adds_bos(root, *impl);
  impl->name = impl->kind == Impl::Kind::ByteLevel ? "byte-level BPE" : "SentencePiece-style BPE";
  impl->finish();
  if (impl->kind == Impl::Kind::SentencePiece && !model.boolean_if("byte_fallback").value_or(false))
    impl->bytes.fill(-1);
  return Tokenizer(std::move(impl));
}

}  // namespace rarefy::files
