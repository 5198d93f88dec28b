// Attention: checks of everything that becomes an address, the table of kernels, and dispatch.
#include "rarefy/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rarefy/attention/attention_cpu.h"
#include "rarefy/attention/params_cuda.h"
#include "rarefy/attention/sm80/launch.h"

namespace rarefy::attention {
namespace {

enum class Operation { Decode, Prefill };

/// A row of the kernel table: what one kernel handles.
struct Kernel {
  Operation operation;
  Device::Kind device;
  Version version;
  DType dtype;
  int head_dim;
  bool operator==(const Kernel&) const = default;
};

constexpr DType kPageTypes[] = {DType::F16, DType::BF16};
constexpr int kHeadDims[] = {64, 128};

constexpr std::size_t kCpuKernels = 16, kCudaKernels = kCudaBuild ? 8 : 0;

constexpr auto kKernels = [] {
  std::array<Kernel, kCpuKernels + kCudaKernels> kernels{};
  std::size_t n = 0;
  for (const Operation operation : {Operation::Decode, Operation::Prefill})
    for (const Version version : {Version::Fast, Version::Plain})
      for (const DType dtype : kPageTypes)
        for (const int head_dim : kHeadDims) kernels[n++] = {operation, Device::Kind::Cpu, version, dtype, head_dim};
  if (kCudaBuild)
    for (const Operation operation : {Operation::Decode, Operation::Prefill})
      for (const DType dtype : kPageTypes)
        for (const int head_dim : kHeadDims)
          kernels[n++] = {operation, Device::Kind::Cuda, Version::Fast, dtype, head_dim};
  return kernels;
}();

const char* name(Operation operation) { return operation == Operation::Decode ? "decode" : "prefill"; }
const char* name(Version version) { return version == Version::Fast ? "fast" : "plain"; }
const char* name(Device::Kind kind) { return kind == Device::Kind::Cpu ? "cpu" : "cuda"; }

std::string describe(const Kernel& kernel) {
  return fmt::format("{} {} {} {} head_dim {}", name(kernel.operation), name(kernel.device), name(kernel.version),
                     to_string(kernel.dtype), kernel.head_dim);
}

void require_kernel(Operation operation, const KvView& view, Version version) {
  const Kernel asked{operation, view.device.kind, version, view.dtype, view.head_dim};
  if (std::find(kKernels.begin(), kKernels.end(), asked) != kKernels.end()) return;
  std::string rows;
  for (const Kernel& kernel : kKernels) rows += fmt::format("; {}", describe(kernel));
  fail(ErrorCode::Unsupported, "E_NO_KERNEL", "no attention kernel \"{}\"; this build has: {}", describe(asked),
       rows.substr(2));
}

void check_lengths(const KvView& view) {
  for (int b = 0; b < view.batch; ++b) {
    const std::int64_t tokens = view.kv_len[b];
    if (tokens < 0 || blocks_for(tokens) > view.max_blocks)
      fail(ErrorCode::BadInput, "E_KV_LEN", "sequence {}: kv_len {} does not fit max_blocks {}", b, tokens,
           view.max_blocks);
    if (view.slots[b] < 0) fail(ErrorCode::BadInput, "E_SLOT", "sequence {}: slot {} is negative", b, view.slots[b]);
  }
}

void check_map_entry(const KvView& view, const char* map, std::int32_t entry, std::int32_t sparse_pages, int sequence,
                     int kv_head, std::int64_t block) {
  const std::int64_t page = entry;
  if (page > view.dense_pages || -page > sparse_pages)
    fail(ErrorCode::BadInput, "E_MAP_RANGE",
         "{}: sequence {}, KV head {}, block {}: entry {} is outside the pools of {} dense and {} sparse pages", map,
         sequence, kv_head, block, entry, view.dense_pages, sparse_pages);
}

// Every entry of the blocks in use, read or not: the scan is linear in the map and a small share of reading the pages.
void check_maps(const KvView& view) {
  for (int b = 0; b < view.batch; ++b) {
    const std::int64_t blocks = blocks_for(view.kv_len[b]);
    for (int h = 0; h < view.kv_heads; ++h) {
      const std::int64_t row = view.row(b, h);
      for (std::int64_t i = 0; i < blocks; ++i) {
        check_map_entry(view, "k_map", view.k_map[row + i], view.sparse_pages, b, h, i);
        check_map_entry(view, "v_map", view.v_map[row + i], view.sparse_pages, b, h, i);
        if (view.k_window != nullptr) check_map_entry(view, "k_window", view.k_window[row + i], 0, b, h, i);
        if (view.v_window != nullptr) check_map_entry(view, "v_window", view.v_window[row + i], 0, b, h, i);
      }
    }
  }
}

void check_resident(const KvView& view, int sequence, int kv_head, std::int64_t block) {
  const std::int64_t at = view.row(sequence, kv_head) + block;
  if (view.k_map[at] == 0 || view.v_map[at] == 0)
    fail(ErrorCode::BadInput, "E_NOT_RESIDENT",
         "sequence {}, KV head {}: block {} is not resident (k_map {}, v_map {})", sequence, kv_head, block,
         view.k_map[at], view.v_map[at]);
}

void check_list(const KvView& view, const BlockList& list, std::int64_t list_row, int sequence) {
  const std::int64_t blocks = blocks_for(view.kv_len[sequence]);
  for (int h = 0; h < view.kv_heads; ++h) {
    const std::int32_t* ids = list.ids + (list_row * view.kv_heads + h) * list.max_selected;
    for (int i = 0; i < list.max_selected; ++i) {
      const std::int32_t id = ids[i];
      if (id < -1 || id >= blocks)
        fail(ErrorCode::BadInput, "E_LIST_RANGE",
             "row {} of the block list, KV head {}: block {} at {} is outside sequence {} of {} blocks", list_row, h,
             id, i, sequence, blocks);
      if (i > 0 && id != -1 && id <= ids[i - 1])
        fail(ErrorCode::BadInput, "E_LIST_ORDER",
             "row {} of the block list, KV head {}: block {} at {} follows {}; ids ascend, then -1", list_row, h, id, i,
             ids[i - 1]);
      if (i > 0 && id != -1 && ids[i - 1] == -1)
        fail(ErrorCode::BadInput, "E_LIST_ORDER", "row {} of the block list, KV head {}: block {} at {} follows -1",
             list_row, h, id, i);
      if (id >= 0) check_resident(view, sequence, h, id);
    }
  }
}

void check_all_resident(const KvView& view, int sequence) {
  for (int h = 0; h < view.kv_heads; ++h)
    for (std::int64_t i = 0; i < blocks_for(view.kv_len[sequence]); ++i) check_resident(view, sequence, h, i);
}

// Shapes, which decode and prefill check alike on every device.
void check_shapes(const TensorView& q, const KvView& view, const BlockList& blocks, const TensorView& o,
                  const TensorView& lse) {
  CHECK(q.shape.rank() == 3, "q has shape {}, not [rows, q_heads, head_dim]", to_string(q.shape));
  const std::int64_t rows = q.shape[0], q_heads = q.shape[1];
  const DType dtype = view.device.is_cpu() ? DType::F32 : view.dtype;
  check_tensor("q", q, dtype, {rows, q_heads, view.head_dim}, view.device);
  check_tensor("o", o, dtype, q.shape, view.device);
  if (lse.data != nullptr) check_tensor("lse", lse, DType::F32, {rows, q_heads}, view.device);
  CHECK(view.kv_heads > 0 && q_heads % view.kv_heads == 0, "{} query heads over {} KV heads", q_heads, view.kv_heads);
  CHECK(view.batch >= 0 && view.max_blocks >= 0 && view.dense_pages >= 0 && view.sparse_pages >= 0,
        "batch {}, max_blocks {}, dense_pages {}, sparse_pages {}", view.batch, view.max_blocks, view.dense_pages,
        view.sparse_pages);
  CHECK(blocks.max_selected >= 0, "max_selected is {}", blocks.max_selected);
}

// Of a call on the CPU, where the maps can be looked at; returns the params.
Params check_common(const TensorView& q, const KvView& view, const BlockList& blocks, const Options& options,
                    const TensorView& o, const TensorView& lse) {
  check_shapes(q, view, blocks, o, lse);
  check_lengths(view);
  check_maps(view);
  const std::int64_t q_heads = q.shape[1];
  return {view,
          blocks,
          q.as<float>(),
          o.as<float>(),
          lse.data != nullptr ? lse.as<float>() : nullptr,
          static_cast<int>(q_heads),
          static_cast<int>(q_heads / view.kv_heads),
          options.scale,
          options.local};
}

CudaParams cuda_params(const TensorView& q, const KvView& view, const BlockList& blocks, const Options& options,
                       const TensorView& o, const TensorView& lse) {
  check_shapes(q, view, blocks, o, lse);
  CHECK(options.scale > 0, "scale is {}, must be positive", options.scale);
  CudaParams params{.view = view, .blocks = blocks, .q = q.data, .o = o.data};
  params.lse = lse.data != nullptr ? lse.as<float>() : nullptr;
  params.q_heads = static_cast<int>(q.shape[1]);
  params.group = params.q_heads / view.kv_heads;
  params.scale = options.scale;
  params.local = options.local;
  CHECK(options.split_blocks > 0, "split_blocks is {}", options.split_blocks);
  params.split_blocks = options.split_blocks;
  params.error = options.error;
  return params;
}

// The scratch holds the partials, then the error flag of callers that gave none.
void decode_cuda(CudaParams params, std::int64_t rows, Workspace& workspace, Stream& stream) {
  const KvView& view = params.view;
  params.splits = sm80::decode_splits(params.blocks.ids != nullptr ? params.blocks.max_selected : view.max_blocks,
                                      params.split_blocks);
  const std::int64_t partials = rows * params.q_heads * params.splits;
  auto* scratch = workspace.reserve_as<float>(partials * (view.head_dim + 1) + 1);
  params.partial_o = scratch;
  params.partial_lse = scratch + partials * view.head_dim;
  if (params.error == nullptr) params.error = reinterpret_cast<std::int32_t*>(params.partial_lse + partials);
  sm80::launch_decode(params, stream);
}

// The scratch holds q_start, then the error flag of callers that gave none.
void prefill_cuda(CudaParams params, std::span<const std::int32_t> q_start, Workspace& workspace, Stream& stream) {
  if (params.blocks.ids != nullptr)
    fail(ErrorCode::Unsupported, "E_NO_KERNEL", "prefill of listed blocks has no CUDA kernel yet");
  const auto count = static_cast<std::int64_t>(q_start.size());
  auto* scratch = workspace.reserve_as<std::int32_t>(count + 1);
  copy_bytes(scratch, q_start.data(), count * 4, stream);
  params.q_start = scratch;
  if (params.error == nullptr) params.error = scratch + count;
  for (std::size_t b = 0; b + 1 < q_start.size(); ++b)
    params.max_q_len = std::max(params.max_q_len, q_start[b + 1] - q_start[b]);
  sm80::launch_prefill(params, stream);
}

void check_q_start(std::span<const std::int32_t> q_start, int batch, std::int64_t rows) {
  CHECK(q_start.size() == static_cast<std::size_t>(batch) + 1, "q_start has {} entries for {} sequences",
        q_start.size(), batch);
  CHECK(q_start.front() == 0 && q_start.back() == rows, "q_start goes from {} to {}, q has {} rows", q_start.front(),
        q_start.back(), rows);
  for (std::size_t b = 0; b + 1 < q_start.size(); ++b)
    CHECK(q_start[b] <= q_start[b + 1], "q_start falls from {} to {} at sequence {}", q_start[b], q_start[b + 1], b);
}

}  // namespace

int decode_split_blocks(std::int64_t rows, std::int64_t blocks, int multiprocessors) {
  constexpr int kFewest = 16, kMost = 512;
  const std::int64_t places = 2 * std::max(1, multiprocessors);  // two CTAs share a multiprocessor
  int split = kFewest;
  while (split < kMost && rows * blocks > std::int64_t{split} * places) split *= 2;
  return split;
}

void decode(const TensorView& q, const KvView& view, const BlockList& blocks, const Options& options,
            const TensorView& o, const TensorView& lse, Workspace& workspace, Stream& stream) {
  require_kernel(Operation::Decode, view, options.version);
  CHECK(q.shape.rank() == 3 && q.shape[0] == view.batch, "q has shape {}, the view has {} sequences",
        to_string(q.shape), view.batch);
  if constexpr (kCudaBuild)
    if (!view.device.is_cpu()) {
      const CudaParams params = cuda_params(q, view, blocks, options, o, lse);
      if (view.batch > 0 && params.q_heads > 0) decode_cuda(params, q.shape[0], workspace, stream);
      return;
    }
  const Params params = check_common(q, view, blocks, options, o, lse);
  for (int b = 0; b < view.batch; ++b) {
    if (blocks.ids != nullptr)
      check_list(view, blocks, b, b);
    else
      check_all_resident(view, b);
  }
  if (params.group == 0) return;
  if (options.version == Version::Plain)
    decode_plain(params);
  else
    decode_fast(params, workspace);
}

void prefill(const TensorView& q, std::span<const std::int32_t> q_start, const KvView& view, const BlockList& blocks,
             const Options& options, const TensorView& o, const TensorView& lse, Workspace& workspace, Stream& stream) {
  require_kernel(Operation::Prefill, view, options.version);
  if constexpr (kCudaBuild)
    if (!view.device.is_cpu()) {
      const CudaParams params = cuda_params(q, view, blocks, options, o, lse);
      check_q_start(q_start, view.batch, q.shape[0]);
      if (q.shape.elements() > 0) prefill_cuda(params, q_start, workspace, stream);
      return;
    }
  const Params params = check_common(q, view, blocks, options, o, lse);
  check_q_start(q_start, view.batch, q.shape[0]);
  for (int b = 0; b < view.batch; ++b) {
    if (blocks.ids == nullptr) {
      if (q_start[b] < q_start[b + 1]) check_all_resident(view, b);
      continue;
    }
    for (std::int32_t i = q_start[b]; i < q_start[b + 1]; ++i) check_list(view, blocks, i, b);
  }
  if (params.group == 0) return;
  if (options.version == Version::Plain)
    prefill_plain(params, q_start);
  else if (blocks.ids != nullptr)
    prefill_listed(params, q_start, workspace);
  else
    prefill_fast(params, q_start, workspace);
}

std::vector<std::string> describe_kernels() {
  std::vector<std::string> lines;
  for (const Kernel& kernel : kKernels) {
    lines.push_back(fmt::format("{}, pages dense and 2:4, any group", describe(kernel)));
    if (kernel.version == Version::Fast && kernel.device == Device::Kind::Cpu)
      lines.back() += fmt::format(", {}", fast_targets());
  }
  return lines;
}

}  // namespace rarefy::attention
