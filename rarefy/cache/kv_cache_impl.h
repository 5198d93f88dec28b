// The inside of a KvCache: pools, maps and sequences, and the steps of a block's life. For kv_cache.cpp and
// kv_cache_seal.cpp only.
#pragma once
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "rarefy/base/check.h"
#include "rarefy/cache/block_map.h"
#include "rarefy/cache/kv_cache.h"
#include "rarefy/cache/page_plan.h"
#include "rarefy/cache/pool.h"
#include "rarefy/cache/token_weights.h"

namespace rarefy {

using format24::Side;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

/// Throws BadInput or Unsupported; fills in the sizes of the pools.
CacheConfig checked_config(CacheConfig config);

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
      : config(checked_config(c)),
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
  bool weighs_by_recent(const StepSequence& s) const {
    return config.token_weights == TokenWeights::Recent && s.phase != Phase::Decode;
  }
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
  struct StepRows {
    const StepSequence& sequence;
    std::int64_t first;   // its first row of q
    std::int64_t kv_len;  // its tokens, those of this step included
  };
  StepRows step_rows(int slot) const;
  std::vector<QuerySet> queries(int layer, const Candidate& block, const StepRows& own) const;
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

}  // namespace rarefy
