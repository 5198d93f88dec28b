// Timing on a GPU with events, and its read bandwidth.
#pragma once
#include <functional>

#include "rarefy/base/device.h"

namespace rarefy::bench {

struct Timing {
  double median_s = 0, low_s = 0, high_s = 0;  // of one call; the 10th and the 90th percentile
};

/// Times `run`, which queues work on `stream`: after a warm-up, `samples` of `calls` each between two events.
Timing time_gpu(Stream& stream, const std::function<void()>& run, int samples = 21, int calls = 10);

/// Bytes per second of a kernel that only reads 4 GiB.
double gpu_read_bandwidth(Stream& stream);

}  // namespace rarefy::bench
