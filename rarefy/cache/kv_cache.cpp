// The life cycle of blocks: append, settle, fork, free. Sealing is in kv_cache_seal.cpp.
#include "rarefy/cache/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "rarefy/base/convert.h"
#include "rarefy/cache/kv_cache_impl.h"

namespace rarefy {

CacheConfig checked_config(CacheConfig c) {
  require_device(c.device);
  if (!c.device.is_cpu())
    fail(ErrorCode::Unsupported, "E_NO_CUDA", "device '{}': models and their cache run on the CPU only so far",
         to_string(c.device));
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
