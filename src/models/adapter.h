// A LoRA adapter in memory: factors for matrices of a decoder, laid out for the kernels; and the
// adapters that a model has at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/peft_adapter.h"
#include "kernels/lora/op.h"
#include "models/program/program.h"
#include "models/weight_layout.h"
#include "seams/forward_batch.h"
#include "tensor/dtype.h"

namespace espalier {

// Where a module's factors add to the result of a GEMM.
struct AdaptedModule {
  WeightId weight;
  int64_t column = 0;
  int64_t in_features = 0, out_features = 0;
};

// The modules of a model that adapters may have factors for. Immutable, thread-safe to read.
class AdaptedModules {
 public:
  // program: its GEMMs with `adapters` are those that may be adapted.
  AdaptedModules(const WeightLayout& layout, const program::Program& program);

  // kInvalidArgument where the model has no such module, or one of another shape.
  Result<const AdaptedModule*> find(const PeftModule& wanted) const;
  const std::map<std::string, AdaptedModule, std::less<>>& by_name() const { return by_name_; }

 private:
  std::string names() const;
  std::map<std::string, AdaptedModule, std::less<>> by_name_;
};

// The file, unless its rank is above rank_max (0: any).
Result<PeftAdapter> open_adapter(const std::filesystem::path& folder, int32_t rank_max);

// Immutable, thread-safe to read.
class Adapter {
 public:
  // Factors of one tensor among those that make a matrix: of q in [q; k; v].
  struct Part {
    kernels::LoraFactors factors;
    int64_t column = 0;  // of the matrix's result
  };

  // modules: of the model; type: what the factors are held in. kInvalidArgument names a module that
  // the model does not have or that is not adapted, and factors whose shape does not fit.
  static Result<std::shared_ptr<const Adapter>> make(const PeftAdapter& file,
                                                     const AdaptedModules& modules, DType type);

  // What is added to this matrix's result; empty: nothing.
  std::span<const Part> parts(WeightId id) const;
  int64_t size_bytes() const { return size_bytes_; }

 private:
  static constexpr size_t kNumKinds = static_cast<size_t>(WeightKind::kPoolingHeadBias) + 1;
  static size_t index_of(WeightId id) {
    return static_cast<size_t>(id.index) * kNumKinds + static_cast<size_t>(id.kind);
  }

  std::vector<std::vector<Part>> parts_;  // by index_of; it may be shorter
  int64_t size_bytes_ = 0;
};

// Thread-safe.
class AdapterTable {
 public:
  void add(AdapterId id, std::shared_ptr<const Adapter> adapter);
  void remove(AdapterId id);
  // Null where there is none. Shared with a step that runs, which may outlive remove().
  std::shared_ptr<const Adapter> find(AdapterId id) const;

 private:
  mutable std::mutex mutex_;
  std::map<AdapterId, std::shared_ptr<const Adapter>> adapters_;
};

}  // namespace espalier
