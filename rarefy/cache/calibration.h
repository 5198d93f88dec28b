// The calibration of one model: channel orders, channel weights and probe queries, and the file that holds them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rarefy {

/// What sealing knows of a model (pruning.md 1 to 4). All in channel order, except `order` itself.
struct Calibration {
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int probes = 0;  // per query head
  std::string model_hash;
  std::vector<std::int32_t>
      order;  // [layers, kv_heads, head_dim] channels of the file, in the order in which the cache holds them
  std::vector<float> weights;  // [layers, kv_heads, head_dim] u_c = sqrt(E[q_c^2])
  std::vector<float> queries;  // [layers, q_heads, probes, head_dim] at random positions of the context

  const float* probe(int layer, int q_head) const {
    return queries.data() + (static_cast<std::int64_t>(layer) * q_heads + q_head) * probes * head_dim;
  }
};

/// Writes a safetensors file, whole or not at all; the same calibration gives the same bytes. Throws Io.
void save_calibration(const Calibration& calibration, const std::filesystem::path& path);

/// Reads a file and checks it against the model. Throws NotFound, Io, BadFile: E_CAL_FORMAT (not a calibration file, or
/// of another version), E_CAL_MODEL (made for another model), E_CAL_SHAPE, E_CAL_VALUE (an order that is no
/// permutation, a weight that is not positive, a query that is not finite).
///   expected  its dimensions and model_hash are compared
Calibration load_calibration(const std::filesystem::path& path, const Calibration& expected);

}  // namespace rarefy
