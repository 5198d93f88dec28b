// What this machine can do, measured in the same run: read bandwidth and float32 products, all threads.
#pragma once

namespace rarefy::bench {

/// Bytes per second of reading 256 MiB in order, best of several rounds; measured once.
double read_bandwidth();

/// Float32 operations per second of fused multiply-adds on registers, best of several rounds; measured once.
double fp32_peak();

}  // namespace rarefy::bench
