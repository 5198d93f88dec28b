// Sealing: which blocks are due, how their tokens weigh, and their dense pages into sparse ones.
#include <algorithm>

#include "rarefy/cache/kv_cache_impl.h"
#include "rarefy/format24/compress.h"

namespace rarefy {

/// Blocks of [begin, end) that are dense.
std::vector<Candidate> KvCache::Impl::candidates(int layer, Side side, const StepSequence& s, int kv_head,
                                                 std::int64_t begin, std::int64_t end) {
  std::vector<Candidate> out;
  const std::int32_t* entries = map(layer, side).row(s.sequence, kv_head);
  for (std::int64_t block = begin; block < end; ++block)
    if (entries[block] > 0) out.push_back({s.sequence, kv_head, block, 0});
  return out;
}

/// The queries that stand for those to come, one set per query head of the block's KV head: the last of the step's,
/// or the calibration's.
std::vector<QuerySet> KvCache::Impl::queries(int layer, const Candidate& block, const StepRows& own) const {
  constexpr std::int64_t kRecent = 256,
                         kEvery = 4;  // every fourth of the last 256 queries: neighbours ask for the same
  const int group = config.q_heads / config.kv_heads;
  std::vector<QuerySet> out;
  for (int head = block.kv_head * group; head < (block.kv_head + 1) * group; ++head) {
    if (weighs_by_recent(own.sequence)) {
      const std::int64_t rows = own.sequence.q_len, count = std::min(kRecent, rows),
                         stride = std::int64_t{config.q_heads} * config.head_dim;
      const float* first = q.as<float>() + (own.first + rows - count) * stride + std::int64_t{head} * config.head_dim;
      out.push_back({first, (count + kEvery - 1) / kEvery, kEvery * stride});
    } else if (config.calibration != nullptr) {
      out.push_back({config.calibration->probe(layer, head), config.calibration->probes, config.head_dim});
    }
  }
  return out;
}

/// Where a sequence of the step stands in it.
KvCache::Impl::StepRows KvCache::Impl::step_rows(int slot) const {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (step[i].sequence == slot) return {step[i], first, kv_len[i]};
    first += step[i].q_len;
  }
  CHECK(false, "sequence {} is not in the step", slot);
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

/// Token weights of blocks that are sealed together, one KV head after the other. For the step's own queries, and once
/// the prompt has ended, the softmax of the expected attention runs over all keys there are and the mean over what is
/// sealed: a tenth better than block by block. Probes weigh block by block while the text grows, so that a block's seal
/// needs no other keys and is the same however the prompt is cut into chunks.
void KvCache::Impl::weigh_tokens(int layer, const std::vector<Candidate>& blocks) {
  weights.resize(blocks.size() * kBlock);
  for (std::size_t begin = 0, end; begin < blocks.size(); begin = end) {
    const Candidate& head = blocks[begin];
    for (end = begin + 1; end < blocks.size() && blocks[end].slot == head.slot && blocks[end].kv_head == head.kv_head;)
      ++end;
    const StepRows own = step_rows(head.slot);
    const std::vector<QuerySet> sets = queries(layer, head, own);
    const bool all_keys = prompt_ended || weighs_by_recent(own.sequence);
    std::vector<float> lse;
    if (all_keys) lse = log_sums(layer, head, own.kv_len, sets);
#pragma omp parallel for schedule(dynamic, 2) if (end - begin > 4)
    for (std::size_t i = begin; i < end; ++i) {
      std::vector<std::byte> unpacked;
      float* mass = weights.data() + i * kBlock;
      expected_attention(keys_of(layer, blocks[i], blocks[i].block, own.kv_len, unpacked), sets,
                         all_keys ? lse.data() : nullptr, mass);
    }
    double mean = 1.0 / kBlock;
    if (all_keys) {
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

}  // namespace rarefy
