// The KV cache of one model: dense and sparse pools, block maps, and the life cycle of blocks (DESIGN.md, section 6).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"
#include "rarefy/cache/calibration.h"
#include "rarefy/cache/kv_view.h"
#include "rarefy/cache/pruner.h"
#include "rarefy/cache/simulated.h"

namespace rarefy {

/// Share of the blocks that are sealed, keys and values apart, each in [0, 1].
struct Sparsity {
  float k = 0;
  float v = 0;
};

/// Moving: queries read the `local` tokens before their tile dense. Prompt: only the prompt's last `local` tokens (the
/// paper).
enum class PrefillWindow : std::uint8_t { Moving, Prompt };

/// Where the expected attention of a block's tokens comes from when its values are sealed: nowhere (all equal), the
/// calibration's probe queries, or the step's last 256 queries (in decode, where a step has one, the probes).
enum class TokenWeights : std::uint8_t { None, Probe, Recent };

/// What a step does to a sequence. PrefillEnd is the prompt's last chunk: after its attention the sequence is sealed up
/// to the decode sparsity. Decode appends tokens (one, or several at once to score a text) and seals what left the
/// local window.
enum class Phase : std::uint8_t { Prefill, PrefillEnd, Decode };

using SequenceId = std::int32_t;

struct CacheConfig {
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::F16;  // of the pages: F16 or BF16
  int max_sequences = 1;
  std::int64_t max_tokens = 0;    // of one sequence
  std::int64_t max_chunk = 2048;  // tokens of one step: sizes the pools
  int sink = 64;                  // tokens at the start that stay dense, a multiple of the block
  int local = 256;                // tokens before the query that are read dense, a multiple of the block
  Sparsity prefill;
  Sparsity decode;  // at least `prefill`
  PrefillWindow window = PrefillWindow::Moving;
  format24::LossKind loss = format24::LossKind::L1;
  TokenWeights token_weights = TokenWeights::None;
  std::shared_ptr<const Calibration> calibration;   // for Probe, and for Recent in decode; may be null otherwise
  SimulatedCache simulated = SimulatedCache::None;  // rounds keys and values as another cache would, to compare with it
  std::int64_t dense_pages = 0;                     // 0: what max_sequences of max_tokens can need
  std::int64_t sparse_pages = 0;                    // as dense_pages
  Device device;
};

/// What the sequences hold now. Bytes are of pages in use; `dense_bytes` is what the same tokens' full pages would take
/// dense.
struct CacheStats {
  std::int64_t blocks = 0;  // per side: sequences x layers x kv_heads x blocks, the partial last ones included
  std::int64_t sealed_k = 0;
  std::int64_t sealed_v = 0;
  std::int64_t k_bytes = 0;
  std::int64_t v_bytes = 0;
  std::int64_t dense_bytes = 0;  // of one side
  std::int64_t map_bytes = 0;    // of the map entries of these blocks, both sides
};

struct StepSequence {
  SequenceId sequence = 0;
  std::int32_t q_len = 0;
  Phase phase = Phase::Decode;
  std::int64_t prompt_len = 0;  // of the whole prompt; used by PrefillWindow::Prompt
};

/// A paged, variable-length cache in which a block is dense or sealed. Not thread-safe: one step at a time.
///   add / fork / free        sequences: fork shares full pages by reference count and copies the partial last block
///   begin_step               reserves pages for everything that the step can need; false (nothing changed) if they are
///   not there append, fetch, view, settle   once per layer in this order, for the step's sequences end_step the step's
///   tokens now belong to the sequences
class KvCache {
 public:
  /// Throws BadInput (config), OutOfMemory, Unsupported (head_dim, dtype, device). `pruner` decides what a seal keeps.
  KvCache(const CacheConfig& config, std::shared_ptr<const Pruner> pruner);
  KvCache(KvCache&&) noexcept;
  ~KvCache();

  const CacheConfig& config() const;

  std::optional<SequenceId> add();
  std::optional<SequenceId> fork(SequenceId sequence);
  void free(SequenceId sequence);
  std::int64_t length(SequenceId sequence) const;

  /// Throws BadInput if a sequence is unknown, repeated, would exceed max_tokens, or (Prompt window) its prompt_len.
  [[nodiscard]] bool begin_step(std::span<const StepSequence> step);

  /// Writes the step's keys and values of one layer into dense pages and seals the blocks that are due.
  ///   q  [total_q, q_heads, head_dim] float32, weighs the tokens; must stay valid until settle
  ///   k, v  [total_q, kv_heads, head_dim] float32, rows in the order of the step's sequences; k after RoPE, in channel
  ///   order
  void append(int layer, const TensorView& q, const TensorView& k, const TensorView& v, Stream& stream);
  /// Makes the listed blocks resident (all are, without a host tier).
  void fetch(int layer, const BlockList& blocks, Stream& stream);
  /// Valid until the next begin_step, free or fork.
  KvView view(int layer) const;
  /// Gives back dense pages that no later query reads; after PrefillEnd seals up to the decode sparsity.
  void settle(int layer, Stream& stream);
  void end_step();

  CacheStats stats(SequenceId sequence) const;
  CacheStats stats() const;  // all sequences; pages that a fork shares count once
  std::int64_t dense_pages_used() const;
  std::int64_t sparse_pages_used() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rarefy
