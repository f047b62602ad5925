#include "models/adapter.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/convert.h"

namespace espalier {
namespace {

using ModulesByName = std::map<std::string, AdaptedModule, std::less<>>;

void add_modules(const MatrixLayout& matrix, WeightId id, ModulesByName& out) {
  constexpr size_t kEnd = std::string_view(".weight").size();
  const auto name_of = [](const WeightBlock& block) {
    return block.name.substr(0, block.name.size() - kEnd);
  };
  if (matrix.fused) {
    out[name_of(matrix.blocks[0])] = {id, 0, matrix.in_features, matrix.out_features()};
    return;
  }
  int64_t column = 0;
  for (const WeightBlock& block : matrix.blocks) {
    out[name_of(block)] = {id, column, matrix.in_features, block.rows};
    column += block.rows;
  }
}

Result<kernels::LoraFactors> pack(const PeftModule& module, DType type) {
  std::vector<float> a(static_cast<size_t>(module.a.num_elements()));
  std::vector<float> b(static_cast<size_t>(module.b.num_elements()));
  copy_as_float(module.a, 0, a);
  copy_as_float(module.b, 0, b);
  return kernels::LoraFactors::pack(a, b, module.rank(), module.scale, type);
}

}  // namespace

AdaptedModules::AdaptedModules(const WeightLayout& layout, const program::Program& program) {
  for (const program::Op& op : program.ops) {
    if (op.kind != program::OpKind::kMatmul || !op.as<program::Matmul>().adapters) continue;
    const WeightId id = op.as<program::Matmul>().weight;
    const MatrixLayout* matrix = find_matrix(layout, id);
    if (matrix != nullptr && !matrix->empty()) add_modules(*matrix, id, by_name_);
  }
}

// The modules of the first layer by their last names: "q_proj, k_proj ...".
std::string AdaptedModules::names() const {
  std::vector<std::string> names;
  for (const auto& [name, module] : by_name_) {
    std::string last = name.substr(name.rfind('.') + 1);
    if (std::ranges::find(names, last) == names.end()) names.push_back(std::move(last));
  }
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

Result<const AdaptedModule*> AdaptedModules::find(const PeftModule& wanted) const {
  const auto found = by_name_.find(wanted.module);
  if (found == by_name_.end())
    return fail(invalid_argument(
        "the adapter has factors for '{}', which is no adapted matrix of this model; the model's "
        "layers take adapters of {}",
        wanted.module, names()));
  const AdaptedModule& module = found->second;
  if (wanted.in_features() != module.in_features || wanted.out_features() != module.out_features)
    return fail(invalid_argument(
        "the adapter was made for another model: its factors of '{}' are for a matrix [{}, {}], "
        "and the model's is [{}, {}]",
        wanted.module, wanted.out_features(), wanted.in_features(), module.out_features,
        module.in_features));
  return &module;
}

Result<PeftAdapter> open_adapter(const std::filesystem::path& folder, int32_t rank_max) {
  ESP_ASSIGN_OR_RETURN(PeftAdapter file, PeftAdapter::open(folder));
  if (rank_max > 0 && file.rank_max() > rank_max)
    return fail(invalid_argument("{}: the rank {} is above the {} of --max-lora-rank",
                                 folder.string(), file.rank_max(), rank_max));
  return file;
}

Result<std::shared_ptr<const Adapter>> Adapter::make(const PeftAdapter& file,
                                                     const AdaptedModules& modules, DType type) {
  auto out = std::make_shared<Adapter>();
  for (const PeftModule& module : file.modules()) {
    ESP_ASSIGN_OR_RETURN(const AdaptedModule* to, modules.find(module));
    ESP_ASSIGN_OR_RETURN(kernels::LoraFactors factors, pack(module, type));
    out->size_bytes_ += static_cast<int64_t>(factors.size_bytes());
    const size_t index = index_of(to->weight);
    if (index >= out->parts_.size()) out->parts_.resize(index + 1);
    out->parts_[index].push_back({std::move(factors), to->column});
  }
  return std::shared_ptr<const Adapter>(std::move(out));
}

std::span<const Adapter::Part> Adapter::parts(WeightId id) const {
  const size_t index = index_of(id);
  return index < parts_.size() ? std::span<const Part>(parts_[index]) : std::span<const Part>();
}

void AdapterTable::add(AdapterId id, std::shared_ptr<const Adapter> adapter) {
  const std::lock_guard lock(mutex_);
  adapters_[id] = std::move(adapter);
}

void AdapterTable::remove(AdapterId id) {
  std::shared_ptr<const Adapter> last;  // declared first: it is freed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(id);
  if (found == adapters_.end()) return;
  last = std::move(found->second);
  adapters_.erase(found);
}

std::shared_ptr<const Adapter> AdapterTable::find(AdapterId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(id);
  return found == adapters_.end() ? nullptr : found->second;
}

}  // namespace espalier
