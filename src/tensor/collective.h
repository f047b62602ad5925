// Communication among the ranks that compute one model together: every rank has a part of each
// matrix, and sums or parts of rows are exchanged between operations.
//
// All ranks call the same operations with the same sizes in the same order; a call returns when the
// rank's own result is there. Each rank uses its Collective from one thread at a time.
#pragma once

#include <cstdint>
#include <span>

namespace espalier {

// Which of how many ranks. The default: one rank has all of the model.
struct Ranks {
  int32_t rank = 0;
  int32_t num_ranks = 1;

  bool single() const { return num_ranks == 1; }
  // The first of this rank's elements where `all` are divided evenly; REQUIRES: they are.
  int64_t begin(int64_t all) const { return all / num_ranks * rank; }
  int64_t count(int64_t all) const { return all / num_ranks; }
};

class Collective {
 public:
  virtual ~Collective() = default;
  virtual Ranks ranks() const = 0;

  // Returns when all ranks have called it: what they wrote before is visible to all.
  virtual void barrier() = 0;

  // data[i] becomes the sum of all ranks' data[i], added in the order of ranks: every rank has the
  // same bits.
  virtual void all_reduce(std::span<float> data) = 0;

  // out[row, rank * columns + c] = part[row, c] of each rank. Strides: floats from one row to the
  // next, part_stride at least `columns`, out_stride at least num_ranks * columns.
  struct Gather {
    const float* part = nullptr;
    int64_t part_stride = 0;
    int64_t rows = 0;
    int64_t columns = 0;  // of a part
    float* out = nullptr;
    int64_t out_stride = 0;
  };
  virtual void all_gather(const Gather& gather) = 0;

  // Rows that belong to ranks: counts[r] of them to rank r, which is the caller's own part `own`;
  // in `all` they follow each other from rank to rank. Rows are `columns` floats and adjacent.
  struct RankParts {
    float* own = nullptr;
    float* all = nullptr;
    int64_t columns = 0;
    std::span<const int64_t> counts;  // [num_ranks], some may be 0
  };
  // all = the ranks' own parts.
  virtual void gather_rows(const RankParts& parts);
  // own = the rank's part of the sum of all ranks' `all`, added in the order of ranks. Afterwards
  // `all` is undefined.
  virtual void scatter_sums(const RankParts& parts);

 protected:
  // Where the rank's part begins in `all`, and how long it is.
  std::span<float> part_of_all(const RankParts& parts) const;
};

}  // namespace espalier
