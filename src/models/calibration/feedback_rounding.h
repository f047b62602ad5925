// A matrix rounded so that its outputs are off by little: each weight's error is made up for by the
// weights that are rounded after it (GPTQ, Frantar et al. 2022, in the form of successive
// cancellation: with H = C C^T the outputs' error is the length of e C, whose parts are made small
// one by one, from the last input to the first).
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "checkpoint/compressed_rounding.h"
#include "kernels/cpu/backend.h"
#include "models/calibration/output_factor.h"

namespace espalier::calibration {

// Squared lengths of what calibration's inputs make of a matrix.
struct OutputSquares {
  double all = 0;         // of its outputs
  double plain = 0;       // of their errors where each weight is rounded to the nearest
  double calibrated = 0;  // of those that are left
};

struct CalibratedMatrix {
  RoundedRows rounded;
  OutputSquares squares;
};

// weights: [rows, factor.columns()]. The scale (and zero point) of each group of 4 bits is that of
// some clippings whose error in the outputs is least; scales of other formats are those of
// round_rows(). The same bits for any number of threads.
Result<CalibratedMatrix> round_with_feedback(kernels::CpuBackend& backend,
                                             const OutputFactor& factor,
                                             CompressedFormat::Kind kind,
                                             std::span<const float> weights);

// round_rows() on all threads.
RoundedRows round_plainly(kernels::CpuBackend& backend, CompressedFormat::Kind kind,
                          std::span<const float> weights, int64_t columns);

}  // namespace espalier::calibration
