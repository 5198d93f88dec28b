// The life cycle of blocks: append, seal, settle, fork, free.
#include "rarefy/cache/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "rarefy/base/check.h"
#include "rarefy/base/convert.h"
#include "rarefy/cache/block_map.h"
#include "rarefy/cache/page_plan.h"
#include "rarefy/cache/pool.h"
#include "rarefy/cache/token_weights.h"
#include "rarefy/format24/compress.h"

namespace rarefy {
namespace {

using format24::Side;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A block that may be sealed, with the loss that this would cost.
struct Candidate {
  int slot;
  int kv_head;
  std::int64_t block;
  float loss;
};

struct LayerMaps {
  BlockMap k, v;
};

struct SequenceState {
  bool used = false;
  std::int64_t length = 0;
  std::int64_t ranked = 0;       // blocks below were ranked in prefill already
  std::vector<float> threshold;  // [layers, 2, kv_heads] largest loss that was sealed
};

CacheConfig checked(CacheConfig c) {
  CHECK(c.layers > 0 && c.kv_heads > 0 && c.q_heads > 0 && c.q_heads % c.kv_heads == 0,
        "cache of {} layers, {} query heads, {} KV heads", c.layers, c.q_heads, c.kv_heads);
  if (!format24::supported_head_dim(c.head_dim))
    fail(ErrorCode::Unsupported, "E_HEAD_DIM", "head_dim {} is not supported (64 and 128 are)", c.head_dim);
  if (c.dtype != DType::F16 && c.dtype != DType::BF16)
    fail(ErrorCode::Unsupported, "E_DTYPE", "a cache of {} is not supported (F16 and BF16 are)", to_string(c.dtype));
  CHECK(c.max_sequences > 0 && c.max_tokens > 0 && c.max_tokens < INT32_MAX, "{} sequences of {} tokens",
        c.max_sequences, c.max_tokens);
  CHECK(c.sink >= 0 && c.sink % kBlock == 0 && c.local >= 0 && c.local % kBlock == 0,
        "sink {} and local {} must be multiples of {}", c.sink, c.local, kBlock);
  CHECK(c.max_chunk > 0, "a chunk of {} tokens", c.max_chunk);
  CHECK(c.token_weights != TokenWeights::Probe || c.calibration != nullptr,
        "token weights from probes need a calibration");
  if (c.calibration != nullptr)
    CHECK(c.calibration->layers == c.layers && c.calibration->q_heads == c.q_heads &&
              c.calibration->kv_heads == c.kv_heads && c.calibration->head_dim == c.head_dim,
          "the calibration is of another shape than the cache");
  const auto share = [](float s) { return s >= 0 && s <= 1; };
  CHECK(share(c.prefill.k) && share(c.prefill.v) && share(c.decode.k) && share(c.decode.v),
        "sparsity must be in [0, 1]: prefill {},{} decode {},{}", c.prefill.k, c.prefill.v, c.decode.k, c.decode.v);
  CHECK(c.decode.k >= c.prefill.k && c.decode.v >= c.prefill.v,
        "decode sparsity {},{} is below prefill sparsity {},{}: sealed blocks stay sealed", c.decode.k, c.decode.v,
        c.prefill.k, c.prefill.v);
  const PageCount plan = plan_pools(c);
  if (c.dense_pages == 0) c.dense_pages = plan.dense;
  if (c.sparse_pages == 0) c.sparse_pages = plan.sparse;
  return c;
}

}  // namespace

struct KvCache::Impl {
  CacheConfig config;
  std::shared_ptr<const Pruner> pruner;
  std::int64_t max_blocks;
  Pool dense, sparse;
  std::vector<LayerMaps> maps;  // per layer
  LayerMaps window;             // of the layer between its append and its settle; all zero otherwise
  std::vector<SequenceState> sequences;

  std::vector<StepSequence> step;
  std::vector<std::int32_t> slots, kv_len;  // of the step, as the view gives them
  TensorView q;                             // of the layer between its append and its settle
  bool prompt_ended = false;                // in settle after PrefillEnd: the whole prompt's keys are known
  std::vector<float> weights;               // token weights of the blocks that are being sealed
  std::vector<std::uint8_t> scratch;        // element masks

  Impl(const CacheConfig& c, std::shared_ptr<const Pruner> p)
      : config(checked(c)),
        pruner(std::move(p)),
        max_blocks(blocks_of(config.max_tokens)),
        dense(config.dense_pages, format24::dense_page_bytes(config.head_dim), config.device),
        sparse(config.sparse_pages, format24::sparse_page_bytes(config.head_dim), config.device),
        window{new_map(), new_map()},
        sequences(static_cast<std::size_t>(config.max_sequences)) {
    CHECK(pruner != nullptr, "a cache needs a pruner");
    for (int layer = 0; layer < config.layers; ++layer) maps.push_back({new_map(), new_map()});
  }

  BlockMap new_map() const { return {config.max_sequences, config.kv_heads, static_cast<int>(max_blocks)}; }
  BlockMap& map(int layer, Side side) {
    LayerMaps& both = maps[static_cast<std::size_t>(layer)];
    return side == Side::K ? both.k : both.v;
  }
  BlockMap& window_map(Side side) { return side == Side::K ? window.k : window.v; }
  SequenceState& at(SequenceId id) { return sequences[static_cast<std::size_t>(id)]; }
  float& threshold(SequenceId id, int layer, Side side, int kv_head) {
    return at(id).threshold[static_cast<std::size_t>((layer * 2 + (side == Side::V)) * config.kv_heads + kv_head)];
  }
  void check_known(SequenceId id) const {
    CHECK(id >= 0 && id < config.max_sequences && sequences[static_cast<std::size_t>(id)].used,
          "sequence {} is unknown", id);
  }
  float prefill_share(Side side) const { return side == Side::K ? config.prefill.k : config.prefill.v; }
  float decode_share(Side side) const { return side == Side::K ? config.decode.k : config.decode.v; }
  std::int64_t first_eligible() const { return config.sink / kBlock; }

  std::int64_t due_end(const StepSequence& s) const;
  struct HeadPages {
    std::int64_t returned;  // dense pages that surely go back
    std::int64_t sealed;    // sparse pages, at most
  };
  HeadPages head_pages(int layer, Side side, const StepSequence& s, int kv_head) const;
  PageCount step_pages(const StepSequence& s) const;
  void write(int layer, Side side, const TensorView& rows);
  void write_head(BlockMap& target, const float* rows, std::int64_t stride, const StepSequence& s, int kv_head);
  std::vector<Candidate> candidates(int layer, Side side, const StepSequence& s, int kv_head, std::int64_t begin,
                                    std::int64_t end);
  std::vector<QuerySet> queries(int layer, const Candidate& block) const;
  std::int64_t length_in_step(int slot) const;
  KeyPage keys_of(int layer, const Candidate& c, std::int64_t block, std::int64_t length,
                  std::vector<std::byte>& unpacked) const;
  std::vector<float> log_sums(int layer, const Candidate& head, std::int64_t length,
                              const std::vector<QuerySet>& sets) const;
  void weigh_tokens(int layer, const std::vector<Candidate>& blocks);
  void compress(int layer, Side side, std::vector<Candidate>& blocks, bool loss_only);
  void seal(int layer, Side side, std::vector<Candidate> blocks, bool keep_dense);
  void seal_share(int layer, Side side, const StepSequence& s, std::int64_t begin, std::int64_t end, float share,
                  bool keep_dense);
  void seal_due(int layer, Side side, const StepSequence& s);
  void drop_pages(SequenceId id);
  CacheStats stats(std::span<const SequenceId> ids) const;
};

/// First block that a query of this step, or of a later one, may read dense.
std::int64_t KvCache::Impl::due_end(const StepSequence& s) const {
  const std::int64_t length = sequences[static_cast<std::size_t>(s.sequence)].length;
  std::int64_t limit;
  if (s.phase == Phase::Decode)
    limit = length - config.local;
  else if (config.window == PrefillWindow::Prompt)
    limit = std::min(s.prompt_len - config.local, length + s.q_len);
  else
    limit = length + s.q_len - config.local;
  return std::max<std::int64_t>(0, limit / kBlock);
}

/// What the step takes and gives back for one KV head of one layer and side.
KvCache::Impl::HeadPages KvCache::Impl::head_pages(int layer, Side side, const StepSequence& s, int kv_head) const {
  const SequenceState& state = sequences[static_cast<std::size_t>(s.sequence)];
  const LayerMaps& both = maps[static_cast<std::size_t>(layer)];
  const std::int32_t* entries = (side == Side::K ? both.k : both.v).row(s.sequence, kv_head);
  const std::int64_t end = due_end(s);
  std::int64_t begin = std::min(end, std::max(state.ranked, first_eligible()));
  const bool ends = s.phase == Phase::PrefillEnd;
  const std::int64_t last = std::max(first_eligible(), (state.length + s.q_len - config.local) / kBlock);
  const std::int64_t due = end - begin;
  if (ends) begin = first_eligible();
  std::int64_t sealed = 0, shared = 0;  // of all blocks that the step may seal
  for (std::int64_t block = begin; block < std::max(end, ends ? last : 0); ++block) {
    sealed += entries[block] < 0 && (!ends || block < last);
    shared += entries[block] > 0 && dense.references(BlockMap::page(entries[block])) > 1;
  }
  if (s.phase == Phase::Decode) {
    const std::int64_t most = decode_share(side) > 0 ? due - sealed : 0;
    return {decode_share(side) == 1 ? most - shared : 0, most};  // below 1 the threshold decides
  }
  std::int64_t most = share_of(prefill_share(side), due);
  if (ends) most = std::max(most, share_of(decode_share(side), last - first_eligible()) - sealed);
  return {std::max<std::int64_t>(0, most - shared), most};  // a fork keeps the shared pages
}

/// The most pages that the step takes at any moment, over what is in use now, from this sequence.
PageCount KvCache::Impl::step_pages(const StepSequence& s) const {
  const std::int64_t length = sequences[static_cast<std::size_t>(s.sequence)].length;
  const std::int64_t created = 2 * config.kv_heads * (blocks_of(length + s.q_len) - blocks_of(length));
  PageCount need;
  std::int64_t dense_now = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    dense_now += created;
    need.dense = std::max(need.dense, dense_now);
    for (const Side side : {Side::K, Side::V})
      for (int head = 0; head < config.kv_heads; ++head) {
        const HeadPages pages = head_pages(layer, side, s, head);
        dense_now -= pages.returned;
        need.sparse += pages.sealed;
      }
  }
  return need;
}

/// Rounds one head's new rows into its dense pages, taking a page where a block begins.
void KvCache::Impl::write_head(BlockMap& target, const float* rows, std::int64_t stride, const StepSequence& s,
                               int kv_head) {
  constexpr int kChunk = 8;  // channels of 16 bytes: the unit that the swizzle keeps together
  const std::int64_t begin = at(s.sequence).length;
  std::int32_t* entries = target.row(s.sequence, kv_head);
  for (std::int64_t i = 0; i < s.q_len; ++i) {
    const std::int64_t position = begin + i;
    const int token = static_cast<int>(position % kBlock);
    std::byte* page = dense.page(BlockMap::page(entries[position / kBlock]));
    float values[128];
    std::copy_n(rows + i * stride, config.head_dim, values);
    round_as(config.simulated, values, config.head_dim);
    std::uint16_t row[128];
    if (config.dtype == DType::F16)
      convert(values, config.head_dim, reinterpret_cast<Half*>(row));
    else
      convert(values, config.head_dim, reinterpret_cast<BFloat16*>(row));
    for (int channel = 0; channel < config.head_dim; channel += kChunk)
      std::memcpy(page + format24::dense_offset(token, channel), row + channel, kChunk * sizeof(std::uint16_t));
  }
}

void KvCache::Impl::write(int layer, Side side, const TensorView& rows) {
  const float* data = rows.as<float>();
  const std::int64_t stride = std::int64_t{config.kv_heads} * config.head_dim;
  std::int64_t row = 0;
  for (const StepSequence& s : step) {
    BlockMap& target = map(layer, side);
    const std::int64_t length = at(s.sequence).length;
    for (int head = 0; head < config.kv_heads; ++head)
      for (std::int64_t block = blocks_of(length); block < blocks_of(length + s.q_len); ++block) {
        const auto page = dense.allocate();
        CHECK(page, "no dense page: begin_step reserved too few");
        target.row(s.sequence, head)[block] = BlockMap::dense(*page);
      }
    const float* first = data + row * stride;
#pragma omp parallel for if (s.q_len >= 32)
    for (int head = 0; head < config.kv_heads; ++head)
      write_head(target, first + std::int64_t{head} * config.head_dim, stride, s, head);
    row += s.q_len;
  }
}

/// Blocks of [begin, end) that are dense.
std::vector<Candidate> KvCache::Impl::candidates(int layer, Side side, const StepSequence& s, int kv_head,
                                                 std::int64_t begin, std::int64_t end) {
  std::vector<Candidate> out;
  const std::int32_t* entries = map(layer, side).row(s.sequence, kv_head);
  for (std::int64_t block = begin; block < end; ++block)
    if (entries[block] > 0) out.push_back({s.sequence, kv_head, block, 0});
  return out;
}

/// The queries that stand for those to come, one set per query head of the block's KV head.
std::vector<QuerySet> KvCache::Impl::queries(int layer, const Candidate& block) const {
  constexpr std::int64_t kRecent = 256,
                         kEvery = 4;  // every fourth of the last 256 queries: neighbours ask for the same
  std::int64_t row = 0;
  const StepSequence* own = nullptr;
  for (const StepSequence& s : step) {
    if (s.sequence == block.slot) own = &s;
    if (own == nullptr) row += s.q_len;
  }
  const int group = config.q_heads / config.kv_heads;
  const bool recent = config.token_weights == TokenWeights::Recent && own->phase != Phase::Decode;
  std::vector<QuerySet> out;
  for (int head = block.kv_head * group; head < (block.kv_head + 1) * group; ++head) {
    if (recent) {
      const std::int64_t count = std::min<std::int64_t>(kRecent, own->q_len),
                         stride = std::int64_t{config.q_heads} * config.head_dim;
      const float* first = q.as<float>() + (row + own->q_len - count) * stride + std::int64_t{head} * config.head_dim;
      out.push_back({first, (count + kEvery - 1) / kEvery, kEvery * stride});
    } else if (config.calibration != nullptr) {
      out.push_back({config.calibration->probe(layer, head), config.calibration->probes, config.head_dim});
    }
  }
  return out;
}

/// Tokens of a sequence, those of this step included.
std::int64_t KvCache::Impl::length_in_step(int slot) const {
  for (std::size_t i = 0; i < step.size(); ++i)
    if (step[i].sequence == slot) return kv_len[i];
  return sequences[static_cast<std::size_t>(slot)].length;
}

/// The keys of a block, dense; sealed ones are unpacked into `unpacked`: they still say how they attract queries.
KeyPage KvCache::Impl::keys_of(int layer, const Candidate& c, std::int64_t block, std::int64_t length,
                               std::vector<std::byte>& unpacked) const {
  const std::int32_t entry = maps[static_cast<std::size_t>(layer)].k.row(c.slot, c.kv_head)[block];
  const int tokens = static_cast<int>(std::min<std::int64_t>(kBlock, length - block * kBlock));
  if (entry > 0) return {dense.page(BlockMap::page(entry)), config.dtype, config.head_dim, tokens};
  unpacked.resize(static_cast<std::size_t>(dense.page_bytes()));
  format24::decompress(Side::K, config.dtype, config.head_dim, sparse.page(BlockMap::page(entry)), unpacked.data());
  return {unpacked.data(), config.dtype, config.head_dim, tokens};
}

/// Token weights of blocks that are sealed together, one KV head after the other. When the prompt has ended, the
/// softmax of the expected attention runs over all its keys and the mean over what is sealed: a tenth better than block
/// by block, which needs no other keys and so serves blocks that are sealed while the text still grows.
void KvCache::Impl::weigh_tokens(int layer, const std::vector<Candidate>& blocks) {
  weights.resize(blocks.size() * kBlock);
  for (std::size_t begin = 0, end; begin < blocks.size(); begin = end) {
    const Candidate& head = blocks[begin];
    for (end = begin + 1; end < blocks.size() && blocks[end].slot == head.slot && blocks[end].kv_head == head.kv_head;)
      ++end;
    const std::vector<QuerySet> sets = queries(layer, head);
    const std::int64_t length = length_in_step(head.slot);
    std::vector<float> lse;
    if (prompt_ended) lse = log_sums(layer, head, length, sets);
#pragma omp parallel for schedule(dynamic, 2) if (end - begin > 4)
    for (std::size_t i = begin; i < end; ++i) {
      std::vector<std::byte> unpacked;
      float* mass = weights.data() + i * kBlock;
      expected_attention(keys_of(layer, blocks[i], blocks[i].block, length, unpacked), sets,
                         prompt_ended ? lse.data() : nullptr, mass);
    }
    double mean = 1.0 / kBlock;
    if (prompt_ended) {
      double total = 0;  // in order, so that the sum does not depend on the number of threads
      for (std::size_t i = begin * kBlock; i < end * kBlock; ++i) total += weights[i];
      mean = total / static_cast<double>((end - begin) * kBlock);
    }
    for (std::size_t i = begin; i < end; ++i)
      weights_of(weights.data() + i * kBlock, static_cast<float>(mean), weights.data() + i * kBlock);
  }
}

/// Log-sum-exp of every query over all keys of one head.
std::vector<float> KvCache::Impl::log_sums(int layer, const Candidate& head, std::int64_t length,
                                           const std::vector<QuerySet>& sets) const {
  std::int64_t count = 0;
  for (const QuerySet& set : sets) count += set.count;
  std::vector<float> lse(static_cast<std::size_t>(count), -kInfinity);
  // Each thread takes some of the queries of every set, so the sum over blocks keeps its order.
  const int parts = 2 * static_cast<int>(sets.size());
#pragma omp parallel for schedule(dynamic)
  for (int part = 0; part < parts; ++part) {
    const std::size_t set = static_cast<std::size_t>(part / 2);
    const std::int64_t half = sets[set].count / 2;
    const QuerySet mine =
        part % 2 == 0 ? QuerySet{sets[set].rows, half, sets[set].stride}
                      : QuerySet{sets[set].rows + half * sets[set].stride, sets[set].count - half, sets[set].stride};
    std::int64_t first = part % 2 == 0 ? 0 : half;
    for (std::size_t before = 0; before < set; ++before) first += sets[before].count;
    std::vector<std::byte> unpacked;
    for (std::int64_t block = 0; block < blocks_of(length); ++block)
      add_log_sums(keys_of(layer, head, block, length, unpacked), {&mine, 1}, lse.data() + first);
  }
  return lse;
}

/// Computes every block's loss; unless `loss_only`, writes its sparse page and the map entry.
void KvCache::Impl::compress(int layer, Side side, std::vector<Candidate>& blocks, bool loss_only) {
  BlockMap& own = map(layer, side);
  const BlockMap& other = map(layer, side == Side::K ? Side::V : Side::K);
  const std::size_t mask_bytes = pruner->needs_scratch() ? static_cast<std::size_t>(kBlock) * config.head_dim : 0;
  scratch.resize(std::max(scratch.size(), blocks.size() * mask_bytes));
  std::vector<format24::CompressJob> jobs(blocks.size());
  std::vector<float> losses(blocks.size());
  std::vector<PageId> pages(blocks.size());
  const bool weighed = side == Side::V && config.token_weights != TokenWeights::None;
  if (weighed) weigh_tokens(layer, blocks);
  const auto dense_page = [&](std::int32_t entry) -> const std::byte* {
    return entry > 0 ? dense.page(BlockMap::page(entry)) : nullptr;
  };
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Candidate& c = blocks[i];
    const std::byte* mine = dense_page(own.row(c.slot, c.kv_head)[c.block]);
    const std::byte* partner = dense_page(other.row(c.slot, c.kv_head)[c.block]);
    SealBlock block{
        .layer = layer, .kv_head = c.kv_head, .block = c.block, .dtype = config.dtype, .head_dim = config.head_dim};
    block.k = side == Side::K ? mine : partner;
    block.v = side == Side::V ? mine : partner;
    if (weighed) block.token_weights = weights.data() + i * kBlock;
    std::uint8_t* mask = mask_bytes > 0 ? scratch.data() + i * mask_bytes : nullptr;
    jobs[i].dense = mine;
    jobs[i].prune = side == Side::K ? pruner->keys(block, mask) : pruner->values(block, mask);
    if (loss_only) continue;
    const auto page = sparse.allocate();
    CHECK(page, "no sparse page: begin_step reserved too few");
    pages[i] = *page;
    jobs[i].sparse = sparse.page(*page);
  }
  Stream stream(config.device);
  format24::compress(side, config.dtype, config.head_dim, jobs, config.loss, losses.data(), stream);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].loss = losses[i];
    if (!loss_only) own.row(blocks[i].slot, blocks[i].kv_head)[blocks[i].block] = BlockMap::sparse(pages[i]);
  }
}

/// Puts sparse pages in the place of dense ones, which go back now or, if this layer's queries still read them, in
/// settle.
void KvCache::Impl::seal(int layer, Side side, std::vector<Candidate> blocks, bool keep_dense) {
  if (blocks.empty()) return;
  std::vector<std::int32_t> old;
  for (const Candidate& c : blocks) old.push_back(map(layer, side).row(c.slot, c.kv_head)[c.block]);
  compress(layer, side, blocks, false);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (keep_dense)
      window_map(side).row(blocks[i].slot, blocks[i].kv_head)[blocks[i].block] = old[i];
    else
      dense.release(BlockMap::page(old[i]));
  }
}

/// Seals blocks of [begin, end), least loss first, until `share` of them is sealed, per KV head.
void KvCache::Impl::seal_share(int layer, Side side, const StepSequence& s, std::int64_t begin, std::int64_t end,
                               float share, bool keep_dense) {
  if (end <= begin || share == 0) return;
  std::vector<Candidate> chosen;
  for (int head = 0; head < config.kv_heads; ++head) {
    std::vector<Candidate> open = candidates(layer, side, s, head, begin, end);
    float& limit = threshold(s.sequence, layer, side, head);
    if (share == 1) {
      limit = kInfinity;
    } else {
      const std::int64_t sealed = end - begin - static_cast<std::int64_t>(open.size());
      const std::int64_t wanted = std::max<std::int64_t>(0, share_of(share, end - begin) - sealed);
      compress(layer, side, open, true);
      std::stable_sort(open.begin(), open.end(),
                       [](const Candidate& a, const Candidate& b) { return a.loss < b.loss; });
      open.resize(std::min(open.size(), static_cast<std::size_t>(wanted)));
      if (!open.empty()) limit = std::max(limit, open.back().loss);
    }
    chosen.insert(chosen.end(), open.begin(), open.end());
  }
  seal(layer, side, std::move(chosen), keep_dense);
}

/// Seals, before attention, what no later query reads dense.
void KvCache::Impl::seal_due(int layer, Side side, const StepSequence& s) {
  const std::int64_t begin = std::max(at(s.sequence).ranked, first_eligible()), end = due_end(s);
  if (s.phase != Phase::Decode) {
    seal_share(layer, side, s, begin, end, prefill_share(side), config.window == PrefillWindow::Moving);
    return;
  }
  if (decode_share(side) == 0) return;
  std::vector<Candidate> due;
  for (int head = 0; head < config.kv_heads; ++head) {
    std::vector<Candidate> open = candidates(layer, side, s, head, begin, end);
    const float limit = decode_share(side) == 1 ? kInfinity : threshold(s.sequence, layer, side, head);
    if (limit < kInfinity && !open.empty()) {
      compress(layer, side, open, true);
      std::erase_if(open, [limit](const Candidate& c) { return !(c.loss <= limit); });
    }
    due.insert(due.end(), open.begin(), open.end());
  }
  seal(layer, side, std::move(due), false);
}

void KvCache::Impl::drop_pages(SequenceId id) {
  const std::int64_t blocks = blocks_of(at(id).length);
  for (int layer = 0; layer < config.layers; ++layer)
    for (const Side side : {Side::K, Side::V})
      for (int head = 0; head < config.kv_heads; ++head) {
        std::int32_t* entries = map(layer, side).row(id, head);
        for (std::int64_t block = 0; block < blocks; ++block) {
          if (entries[block] != 0) (entries[block] > 0 ? dense : sparse).release(BlockMap::page(entries[block]));
          entries[block] = 0;
        }
      }
}

CacheStats KvCache::Impl::stats(std::span<const SequenceId> ids) const {
  CacheStats out;
  std::set<std::int32_t> seen;  // map entries: dense positive, sparse negative
  for (const SequenceId id : ids) {
    const std::int64_t blocks = blocks_of(sequences[static_cast<std::size_t>(id)].length);
    for (const LayerMaps& layer : maps)
      for (const Side side : {Side::K, Side::V})
        for (int head = 0; head < config.kv_heads; ++head) {
          const std::int32_t* entries = (side == Side::K ? layer.k : layer.v).row(id, head);
          for (std::int64_t block = 0; block < blocks; ++block) {
            const std::int32_t entry = entries[block];
            out.map_bytes += static_cast<std::int64_t>(sizeof entry);
            if (entry < 0) ++(side == Side::K ? out.sealed_k : out.sealed_v);
            if (ids.size() > 1 && !seen.insert(entry).second) continue;
            (side == Side::K ? out.k_bytes : out.v_bytes) += entry > 0 ? dense.page_bytes() : sparse.page_bytes();
          }
        }
    out.blocks += blocks * config.layers * config.kv_heads;
  }
  out.dense_bytes = out.blocks * dense.page_bytes();
  return out;
}

KvCache::KvCache(const CacheConfig& config, std::shared_ptr<const Pruner> pruner)
    : impl_(std::make_unique<Impl>(config, std::move(pruner))) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

const CacheConfig& KvCache::config() const { return impl_->config; }

std::optional<SequenceId> KvCache::add() {
  Impl& m = *impl_;
  for (SequenceId id = 0; id < m.config.max_sequences; ++id) {
    if (m.at(id).used) continue;
    m.at(id) = {
        .used = true,
        .threshold = std::vector<float>(static_cast<std::size_t>(m.config.layers) * 2 * m.config.kv_heads, -kInfinity)};
    return id;
  }
  return std::nullopt;
}

std::optional<SequenceId> KvCache::fork(SequenceId sequence) {
  Impl& m = *impl_;
  m.check_known(sequence);
  const std::int64_t length = m.at(sequence).length, blocks = blocks_of(length);
  const std::int64_t full = length / kBlock;
  const std::int64_t copies = (blocks - full) * m.config.layers * 2 * m.config.kv_heads;
  if (m.dense.free_pages() < copies) return std::nullopt;
  const auto child = add();
  if (!child) return std::nullopt;
  m.at(*child) = m.at(sequence);
  for (int layer = 0; layer < m.config.layers; ++layer)
    for (const Side side : {Side::K, Side::V})
      for (int head = 0; head < m.config.kv_heads; ++head) {
        const std::int32_t* from = m.map(layer, side).row(sequence, head);
        std::int32_t* to = m.map(layer, side).row(*child, head);
        for (std::int64_t block = 0; block < full; ++block) {
          to[block] = from[block];
          (from[block] > 0 ? m.dense : m.sparse).add_reference(BlockMap::page(from[block]));
        }
        if (blocks == full) continue;
        const PageId copy = *m.dense.allocate();
        std::memcpy(m.dense.page(copy), m.dense.page(BlockMap::page(from[full])),
                    static_cast<std::size_t>(m.dense.page_bytes()));
        to[full] = BlockMap::dense(copy);
      }
  return child;
}

void KvCache::free(SequenceId sequence) {
  impl_->check_known(sequence);
  impl_->drop_pages(sequence);
  impl_->at(sequence) = {};
}

std::int64_t KvCache::length(SequenceId sequence) const {
  impl_->check_known(sequence);
  return impl_->at(sequence).length;
}

bool KvCache::begin_step(std::span<const StepSequence> step) {
  Impl& m = *impl_;
  PageCount need;
  std::vector<bool> seen(static_cast<std::size_t>(m.config.max_sequences));
  for (const StepSequence& s : step) {
    m.check_known(s.sequence);
    CHECK(!seen[static_cast<std::size_t>(s.sequence)], "sequence {} stands twice in a step", s.sequence);
    seen[static_cast<std::size_t>(s.sequence)] = true;
    const std::int64_t length = m.at(s.sequence).length;
    CHECK(s.q_len > 0 && length + s.q_len <= m.config.max_tokens, "sequence {}: {} tokens and {} more, at most {}",
          s.sequence, length, s.q_len, m.config.max_tokens);
    CHECK(s.phase == Phase::Decode || m.config.window == PrefillWindow::Moving || s.prompt_len >= length + s.q_len,
          "sequence {}: a prompt of {} tokens, the step ends at {}", s.sequence, s.prompt_len, length + s.q_len);
    const PageCount one = m.step_pages(s);
    need.dense += one.dense;
    need.sparse += one.sparse;
  }
  if (need.dense > m.dense.free_pages() || need.sparse > m.sparse.free_pages()) return false;
  m.step.assign(step.begin(), step.end());
  m.slots.clear();
  m.kv_len.clear();
  for (const StepSequence& s : step) {
    m.slots.push_back(s.sequence);
    m.kv_len.push_back(static_cast<std::int32_t>(m.at(s.sequence).length + s.q_len));
  }
  return true;
}

void KvCache::append(int layer, const TensorView& q, const TensorView& k, const TensorView& v, Stream&) {
  Impl& m = *impl_;
  CHECK(layer >= 0 && layer < m.config.layers, "layer {} of {}", layer, m.config.layers);
  std::int64_t rows = 0;
  for (const StepSequence& s : m.step) rows += s.q_len;
  check_tensor("q", q, DType::F32, {rows, m.config.q_heads, m.config.head_dim}, m.config.device);
  check_tensor("k", k, DType::F32, {rows, m.config.kv_heads, m.config.head_dim}, m.config.device);
  check_tensor("v", v, DType::F32, {rows, m.config.kv_heads, m.config.head_dim}, m.config.device);
  m.q = q;
  m.write(layer, Side::K, k);
  m.write(layer, Side::V, v);
  // Values first: the rule for values may look at the block's dense keys.
  for (const StepSequence& s : m.step)
    for (const Side side : {Side::V, Side::K}) m.seal_due(layer, side, s);
}

void KvCache::fetch(int layer, const BlockList&, Stream&) {
  CHECK(layer >= 0 && layer < impl_->config.layers, "layer {} of {}", layer, impl_->config.layers);
}

KvView KvCache::view(int layer) const {
  const Impl& m = *impl_;
  const LayerMaps& maps = m.maps[static_cast<std::size_t>(layer)];
  KvView view;
  view.dtype = m.config.dtype;
  view.head_dim = m.config.head_dim;
  view.kv_heads = m.config.kv_heads;
  view.batch = static_cast<int>(m.step.size());
  view.max_blocks = static_cast<int>(m.max_blocks);
  view.dense_pages = static_cast<std::int32_t>(m.dense.size());
  view.sparse_pages = static_cast<std::int32_t>(m.sparse.size());
  view.dense = m.dense.data();
  view.sparse = m.sparse.data();
  view.k_map = maps.k.data();
  view.v_map = maps.v.data();
  view.k_window = m.window.k.data();
  view.v_window = m.window.v.data();
  view.slots = m.slots.data();
  view.kv_len = m.kv_len.data();
  view.device = m.config.device;
  return view;
}

void KvCache::settle(int layer, Stream&) {
  Impl& m = *impl_;
  for (const StepSequence& s : m.step) {
    const std::int64_t begin = std::max(m.at(s.sequence).ranked, m.first_eligible()), end = m.due_end(s);
    for (const Side side : {Side::V, Side::K})
      for (int head = 0; head < m.config.kv_heads; ++head) {
        std::int32_t* entries = m.window_map(side).row(s.sequence, head);
        for (std::int64_t block = begin; block < end; ++block) {
          if (entries[block] > 0) m.dense.release(BlockMap::page(entries[block]));
          entries[block] = 0;
        }
      }
    if (s.phase != Phase::PrefillEnd) continue;
    const std::int64_t last = std::max<std::int64_t>(0, (m.at(s.sequence).length + s.q_len - m.config.local) / kBlock);
    m.prompt_ended = true;
    for (const Side side : {Side::V, Side::K})
      m.seal_share(layer, side, s, m.first_eligible(), last, m.decode_share(side), false);
    m.prompt_ended = false;
  }
  m.q = {};
}

void KvCache::end_step() {
  Impl& m = *impl_;
  bool prompt_ended = false;
  for (const StepSequence& s : m.step) {
    SequenceState& state = m.at(s.sequence);
    state.ranked = std::max(state.ranked, m.due_end(s));
    state.length += s.q_len;
    prompt_ended = prompt_ended || s.phase == Phase::PrefillEnd;
  }
  if (prompt_ended) m.dense.trim();  // the prompt's dense pages: memory that its sealed form does not need
  m.step.clear();
}

CacheStats KvCache::stats(SequenceId sequence) const {
  impl_->check_known(sequence);
  return impl_->stats({&sequence, 1});
}

CacheStats KvCache::stats() const {
  std::vector<SequenceId> ids;
  for (SequenceId id = 0; id < impl_->config.max_sequences; ++id)
    if (impl_->at(id).used) ids.push_back(id);
  return impl_->stats(ids);
}

std::int64_t KvCache::dense_pages_used() const { return impl_->dense.used_pages(); }
std::int64_t KvCache::sparse_pages_used() const { return impl_->sparse.used_pages(); }

}  // namespace rarefy
