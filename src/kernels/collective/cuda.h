// Collectives among ranks that are GPUs of one process, enqueued like kernels: sums and parts of
// rows are exchanged on the device, and the host waits for nothing.
//
// All ranks enqueue the same operations with the same sizes in the same order, each on one stream
// of its own device; an operation ends on a rank when that rank's result is there. It may be
// captured into a graph; counters of calls lie on the device. A rank whose operation never comes
// makes the others' kernels wait: stop() and a bound on that time end them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/stream.h"
#include "tensor/collective.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kRanksMax = 8;

// x becomes the sum of all ranks' x, in float32 in the order of ranks, rounded once: every rank has
// the same bits, whatever the size. With a residual that is then changed instead of x, whose
// contents become undefined: residual += sum, rounded. With a norm y is the RMS norm of the new
// residual, the bits of rms_norm().
struct AllReduceArgs {
  DType type = DType::kBFloat16;  // of all: kBFloat16 or kFloat32
  void* x = nullptr;              // [rows, dim], contiguous, 16-byte aligned
  int32_t rows = 0;               // 0 does nothing
  int32_t dim = 0;                // a multiple of 8, at most 32768
  void* residual = nullptr;       // [rows, dim], rows residual_stride apart, or none
  int64_t residual_stride = 0;
  const void* norm_weight = nullptr;  // [dim], or none; REQUIRES a residual
  float norm_offset = 0;              // added to each weight
  float norm_epsilon = 1e-6f;
  void* y = nullptr;  // [rows, dim], rows y_stride apart; with a norm
  int64_t y_stride = 0;
};

// out[row, r * columns + c] = part of rank r[row, c].
struct AllGatherArgs {
  DType type = DType::kFloat32;
  const void* part = nullptr;  // [rows, columns], rows part_stride apart
  int64_t part_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t columns = 0;
  void* out = nullptr;  // null: this rank does not need the result, and takes part only
  int64_t out_stride = 0;
};

// Rows that belong to ranks: counts[r] of them to rank r; in `all` they follow each other from rank
// to rank. Rows are contiguous, their bytes a multiple of 16.
struct RankRowsArgs {
  DType type = DType::kBFloat16;  // kBFloat16 or kFloat32
  void* own = nullptr;            // [counts[rank], columns]
  void* all = nullptr;            // [sum of counts, columns]
  int32_t columns = 0;            // a multiple of 8
  int32_t counts[kRanksMax] = {};
};

// slot_tokens[row_slots[row]] of rank 0 becomes that of all ranks.
struct ShareTokensArgs {
  const int32_t* row_slots = nullptr;  // [rows], the same on all ranks; -1: no slot
  int32_t rows = 0;                    // 0 does nothing
  int32_t* slot_tokens = nullptr;
};

// One rank's side. Used from one thread at a time; all memory is borrowed.
class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;
  virtual Ranks ranks() const = 0;

  // Names the buffers that x of all_reduce(), part of all_gather(), `own` of gather_rows() and
  // `all` of scatter_sums() may be, in the same order on all ranks. Replaces what was named before.
  // Valid when the group has connected all ranks.
  virtual void set_buffers(std::vector<const void*> buffers) = 0;

  virtual Status all_reduce(const AllReduceArgs& args, const LaunchOptions& launch) = 0;
  virtual Status all_gather(const AllGatherArgs& args, const LaunchOptions& launch) = 0;
  // all = the ranks' own rows. A rank may write its own rows again behind its next collective.
  virtual Status gather_rows(const RankRowsArgs& args, const LaunchOptions& launch) = 0;
  // own = the rank's rows of the sum of all ranks' `all`, in float32 in the order of ranks, rounded
  // once.
  virtual Status scatter_sums(const RankRowsArgs& args, const LaunchOptions& launch) = 0;
  virtual Status share_tokens(const ShareTokensArgs& args, const LaunchOptions& launch) = 0;
};

struct DeviceGroupOptions {
  std::vector<int32_t> devices;  // of each rank: open devices; tests may name one several times
  int32_t tokens_max = 4096;     // rows of share_tokens()
  // The size up to which an all-reduce is one exchange of messages (PeerGroup), in bytes.
  int64_t message_bytes_max = int64_t{2} << 20;
  // How long a rank waits for another before the whole group fails.
  double stall_seconds = 60;
};

// The ranks of this process among those of several, which NCCL joins.
struct NcclRanks {
  int32_t first_rank = 0;
  int32_t num_ranks = 0;  // 0: those of this process are all
  std::string id;         // new_nccl_id() of one of the processes; where these are all it is empty
};
Result<std::string> new_nccl_id();

// The ranks of one process. Thread-safe but for connect(). Owns the memory through which ranks
// exchange; outlives their use, and the graphs that it is captured in.
class DeviceGroup {
 public:
  // Over peer access (NVLink, or PCIe where the system allows it). kUnavailable names two devices
  // that cannot read each other's memory.
  static Result<std::unique_ptr<DeviceGroup>> create(const DeviceGroupOptions& options);
  // By NVIDIA's NCCL, which needs no peer access. Sums of more than two ranks are rounded at each
  // addition, in an order that their size may change; message_bytes and stall_seconds have no
  // effect. Each rank's operations come from a thread of its own. kUnavailable where NCCL is not
  // installed or does not join the devices, no two of which may be alike.
  // Returns when the ranks of all processes are there.
  static Result<std::unique_ptr<DeviceGroup>> create_nccl(const DeviceGroupOptions& options,
                                                          const NcclRanks& ranks = {});
  virtual ~DeviceGroup() = default;

  virtual std::string_view name() const = 0;  // "peer access" or "NCCL"
  // Whether sums are added in one order whatever their size, so that a row's sum does not depend on
  // the rows beside it.
  virtual bool keeps_order() const = 0;
  // rank: of this process, from 0 on.
  virtual DeviceCollective& rank(int32_t rank) = 0;
  // After all ranks' set_buffers(), while nothing runs. kInvalidArgument where they differ in
  // number.
  virtual Status connect() = 0;
  // All-reduces of at most so many bytes are one exchange of messages, others two-way sums in
  // place. The same bits. While nothing runs.
  virtual void set_message_bytes(int64_t bytes) = 0;
  virtual int64_t message_bytes() const = 0;

  // Ends what waits on any rank, now and later: results are undefined from then on.
  virtual void stop() = 0;
  // Ok, or kDeadlineExceeded with the rank that waited too long and the one it waited for.
  virtual Status status() const = 0;
  // On each rank's device.
  virtual int64_t device_bytes() const = 0;
};

}  // namespace espalier::kernels::cuda
