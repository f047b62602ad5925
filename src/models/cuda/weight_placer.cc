#include "models/cuda/weight_placer.h"

#include <algorithm>
#include <utility>

#include "kernels/linear/quantize_rows.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr int64_t kRowMultiple = 8;  // of a GEMM's outputs: kernels/linear/cuda.h
constexpr int64_t kMxBlock = 32;     // elements that share a scale
constexpr int64_t kMxBytes = 16;     // of such a block

int64_t count_of(const MatrixStack& stack) { return std::max<int64_t>(1, stack.count); }

Status check_whole_blocks(const MatrixStack& stack) {
  if (stack.columns % kMxBlock == 0) return Status();
  return invalid_argument("'{}': {} columns are no whole number of MXFP4 blocks of {}", stack.name,
                          stack.columns, kMxBlock);
}

// A matrix's tensors, or their parts: one where it is one tensor and whole.
std::vector<TensorPart> parts_of(const MatrixLayout& layout) {
  const bool whole = layout.shard.whole();
  const size_t count = layout.fused && whole ? 1 : layout.blocks.size();
  std::vector<TensorPart> out;
  for (size_t i = 0; i < count; ++i) {
    const int64_t rows = layout.fused ? layout.out_features() : layout.blocks[i].rows;
    out.push_back({.name = layout.blocks[i].name, .shape = {rows, layout.in_features}});
    if (!whole) out.back().slice = stored_slice(layout, i);
  }
  return out;
}

}  // namespace

Status check_whole(const MatrixLayout& layout) {
  if (layout.shard.whole()) return Status();
  return error(StatusCode::kUnimplemented,
               "'{}' is cut into {} shards, but every GPU has the whole of this matrix; run the "
               "model on one device",
               layout.blocks.front().name, layout.shard.num_ranks);
}

// A new form is a row here and its function.
struct WeightPlacer::Form {
  StoredForm form;
  Status (WeightPlacer::*place)(const MatrixStack& stack, std::byte* data);
};
const WeightPlacer::Form WeightPlacer::kForms[] = {
    {StoredForm::kRows, &WeightPlacer::rows},
    {StoredForm::kTransposed, &WeightPlacer::transposed},
    {StoredForm::kMxfp4, &WeightPlacer::mxfp4},
};

Status WeightPlacer::stored(StoredForm form, const MatrixStack& stack, std::byte* data) {
  return (this->*kForms[static_cast<size_t>(form)].place)(stack, data);
}

Status WeightPlacer::rows(const MatrixStack& stack, std::byte* data) {
  std::vector<int64_t> shape = {stack.rows, stack.columns};
  if (stack.count > 0) shape.insert(shape.begin(), stack.count);
  return put(stack.name, std::move(shape), stack.slice, data);
}

// A bias is a matrix of one column, which the tensor has without that extent.
Status WeightPlacer::transposed(const MatrixStack& stack, std::byte* data) {
  std::vector<int64_t> shape;
  if (stack.count > 0) shape.push_back(stack.count);
  if (stack.columns > 1) shape.push_back(stack.columns);
  shape.push_back(stack.rows);
  kc::RelayoutArgs args = relayout_of(stack, data);
  if (stack.slice) {
    args.rows = static_cast<int32_t>(stack.slice->columns);
    args.columns = static_cast<int32_t>(stack.slice->rows);
  }
  const int64_t group = int64_t{args.rows} * args.columns;
  if (loader_ != nullptr && !loader_->loads(stack.name)) return Status();
  auto* from = staging_.take<std::byte>(count_of(stack) * group * element_bytes());
  args.from = from;
  args.from_group_stride = group;
  relayouts_.push_back(args);
  return put(stack.name, std::move(shape), stack.slice, from);
}

Status WeightPlacer::mxfp4(const MatrixStack& stack, std::byte* data) {
  ESP_RETURN_IF_ERROR(check_whole_blocks(stack));
  if (loader_ != nullptr && !loader_->loads(stack.name + "_blocks")) return Status();
  const int64_t groups = stack.columns / kMxBlock;
  auto* from = staging_.take<std::byte>(count_of(stack) * stack.rows * groups * kMxBytes);
  auto* scales = staging_.take<std::byte>(count_of(stack) * stack.rows * groups);
  kc::RelayoutArgs args = relayout_of(stack, data);
  args.kind = kc::RelayoutArgs::From::kMxfp4;
  args.from = from;
  args.scales = reinterpret_cast<const uint8_t*>(scales);
  relayouts_.push_back(args);
  if (loader_ == nullptr) return Status();
  const int64_t block_shape[] = {stack.count, stack.rows, groups, kMxBytes};
  const int64_t scale_shape[] = {stack.count, stack.rows, groups};
  ESP_RETURN_IF_ERROR(loader_->put_bytes(stack.name + "_blocks", block_shape, from));
  return loader_->put_bytes(stack.name + "_scales", scale_shape, scales);
}

std::byte* WeightPlacer::mxfp4_records(int64_t count, const kc::Mxfp4Shape& shape,
                                       CudaWeight& out) {
  auto* records = arena_.take<std::byte>(count * shape.size_bytes());
  out = {.data = records,
         .in_features = shape.in_features,
         .out_features = shape.out_features,
         .group_stride = shape.size_bytes(),
         .format = {.type = type_, .codes = {.mxfp4 = true}}};
  return records;
}

Status WeightPlacer::mxfp4_stack(const MatrixStack& stack, CudaWeight& out) {
  ESP_RETURN_IF_ERROR(check_whole_blocks(stack));
  const kc::Mxfp4Shape shape{.out_features = static_cast<int32_t>(stack.rows),
                             .in_features = static_cast<int32_t>(stack.columns),
                             .gated = stack.interleaved};
  std::byte* records = mxfp4_records(count_of(stack), shape, out);
  if (loader_ == nullptr) return Status();
  return loader_->put_mxfp4(stack.name, count_of(stack),
                            {.shape = shape, .records = records, .rows = shape.out_features});
}

Status WeightPlacer::rounded_mxfp4_stack(std::span<const MatrixLayout* const> matrices,
                                         CudaWeight& out) {
  const MatrixLayout& first = *matrices.front();
  const auto blocks = static_cast<int32_t>(first.blocks.size());
  const kc::Mxfp4Shape shape{.out_features = static_cast<int32_t>(first.out_features()),
                             .in_features = static_cast<int32_t>(first.in_features),
                             .gated = blocks == 2};
  std::byte* records = mxfp4_records(std::ssize(matrices), shape, out);
  if (loader_ == nullptr) return Status();
  for (const MatrixLayout* layout : matrices) {
    for (int32_t i = 0; i < blocks; ++i) {
      const WeightBlock& block = layout->blocks[static_cast<size_t>(i)];
      ESP_RETURN_IF_ERROR(loader_->put_rounded_mxfp4(
          {.name = block.name, .shape = {block.rows, layout->in_features}},
          {.shape = shape,
           .records = records,
           .first_row = i,
           .row_step = blocks,
           .rows = static_cast<int32_t>(block.rows)}));
    }
    records += shape.size_bytes();
  }
  return Status();
}

kc::RelayoutArgs WeightPlacer::relayout_of(const MatrixStack& stack, std::byte* to) const {
  return {.type = type_,
          .to = to,
          .groups = static_cast<int32_t>(count_of(stack)),
          .rows = static_cast<int32_t>(stack.rows),
          .columns = static_cast<int32_t>(stack.columns),
          .interleaved = stack.interleaved};
}

Status WeightPlacer::put(const std::string& name, std::vector<int64_t> shape,
                         const std::optional<TensorSlice>& slice, std::byte* data) {
  if (loader_ == nullptr) return Status();
  return loader_->put({name, std::move(shape), slice}, type_, data);
}

// A tensor of more than two dimensions comes row by row, in rows and columns of its own shape.
Status WeightPlacer::matrix(const MatrixLayout& layout, CudaWeight& out, int64_t columns) {
  if (layout.empty()) return Status();
  ESP_RETURN_IF_ERROR(check_shard(layout));
  const int64_t rows = (layout.local_rows() + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
  const int64_t stride = (layout.local_columns() + columns - 1) / columns * columns;
  std::byte* data = take(rows * stride);
  out = {.data = data,
         .in_features = static_cast<int32_t>(stride),
         .out_features = static_cast<int32_t>(rows),
         .format = {.type = type_},
         .shard = layout.shard};
  if (layout.stored_shape.empty()) return blocks(layout, data);
  ESP_RETURN_IF_ERROR(check_whole(layout));
  const TensorSlice whole = TensorSlice::whole(layout.stored_shape);
  const int64_t lines = whole.rows / layout.out_features();
  for (int64_t row = 0; row < layout.out_features(); ++row) {
    const TensorSlice slice{
        .first_row = row * lines, .rows = lines, .first_column = 0, .columns = whole.columns};
    ESP_RETURN_IF_ERROR(put(layout.blocks.front().name, layout.stored_shape, slice, data));
    if (data != nullptr) data += stride * element_bytes();
  }
  return Status();
}

StoredCodesOf WeightPlacer::stored_codes() const {
  if (rounding_.stored == nullptr) return nullptr;
  return
      [this](std::string_view name) { return rounding_.stored->stored_codes(std::string(name)); };
}

WeightPlacer::ExpertFormat WeightPlacer::format_of(const ExpertsLayout& layout) const {
  const StoredCodesOf stored = stored_codes();
  return {.codes = expert_codes(layout, rounding_.types, stored),
          .int4_group = experts_int4_group(layout, rounding_.types, stored)};
}

Status WeightPlacer::coded_matrix(const MatrixLayout& layout, CudaWeight& out) {
  const WeightCodes codes = device_codes(layout, rounding_.types, stored_codes());
  if (codes.e4m3) {
    const MatrixLayout* const matrices[] = {&layout};
    return e4m3_stack(matrices, out);
  }
  if (codes.int4.group > 0) return int4_matrix(layout, codes, out);
  return matrix(layout, out);
}

Status WeightPlacer::e4m3_stack(std::span<const MatrixLayout* const> matrices, CudaWeight& out) {
  const MatrixLayout& first = *matrices.front();
  const WeightCodes codes = device_codes(first, rounding_.types, stored_codes());
  const auto count = static_cast<int64_t>(matrices.size());
  const int64_t rows = first.local_rows(), columns = first.local_columns();
  auto* data = arena_.take<std::byte>(count * rows * columns);
  // Rows of so many have `scale_columns` scales.
  const int64_t scale_rows = codes.block_scales ? kc::kScaleBlock : 1;
  const int64_t scale_columns = codes.block_scales ? kc::block_scale_stride(columns) : 1;
  const auto scales_of = [&](int64_t of_rows) {
    return (of_rows + scale_rows - 1) / scale_rows * scale_columns;
  };
  auto* scales = arena_.take<float>(count * scales_of(rows));
  out = {.data = data,
         .scales = scales,
         .in_features = static_cast<int32_t>(columns),
         .out_features = static_cast<int32_t>(rows),
         .group_stride = count > 1 ? rows * columns : 0,
         .format = {.type = type_, .codes = codes},
         .shard = first.shard};
  for (const MatrixLayout* layout : matrices) {
    ESP_RETURN_IF_ERROR(check_shard(*layout));
    if (loader_ == nullptr) continue;
    for (const TensorPart& part : parts_of(*layout)) {
      ESP_RETURN_IF_ERROR(codes.block_scales ? loader_->put_block_e4m3(part, data, scales)
                                             : loader_->put_e4m3(part, data, scales));
      const int64_t loaded = part.slice ? part.slice->rows : part.shape[0];
      data += loaded * columns;
      scales += scales_of(loaded);
    }
  }
  return Status();
}

Status WeightPlacer::int4_stack(std::span<const MatrixLayout* const> matrices, int32_t group,
                                CudaWeight& out) {
  const kc::Int4ExpertShape shape = int4_expert_shape(*matrices.front(), group);
  const kc::Int4Format format{.group = group, .zeros = true};
  auto* records = arena_.take<std::byte>(std::ssize(matrices) * shape.size_bytes());
  out = {.data = records,
         .in_features = shape.in_features,
         .out_features = shape.out_features,
         .group_stride = shape.size_bytes(),
         .format = {.type = type_, .codes = {.int4 = format}}};
  if (loader_ == nullptr) return Status();
  for (const MatrixLayout* layout : matrices) {
    kc::Int4Destination to{
        .format = format,
        .kind = shape.gated ? kc::Int4Records::kGatedExpert : kc::Int4Records::kExpert,
        .records = records,
        .out_features = shape.out_features,
        .in_features = shape.in_features};
    for (const TensorPart& part : parts_of(*layout)) {
      to.rows = static_cast<int32_t>(part.shape[0]);
      ESP_RETURN_IF_ERROR(loader_->put_int4(part, to));
      to.first_row += to.rows;
    }
    records += shape.size_bytes();
  }
  return Status();
}

Status WeightPlacer::int4_matrix(const MatrixLayout& layout, const WeightCodes& codes,
                                 CudaWeight& out) {
  ESP_RETURN_IF_ERROR(check_whole(layout));
  const kc::Int4Format& format = codes.int4;
  const int64_t rows = layout.out_features(), columns = layout.in_features;
  auto* data = arena_.take<std::byte>(kc::int4_bytes(format, rows, columns));
  out = {.data = data,
         .in_features = static_cast<int32_t>(columns),
         .out_features = static_cast<int32_t>(rows),
         .format = {.type = type_, .codes = {.int4 = format}},
         .shard = layout.shard};
  int32_t* order = codes.int4_columns == nullptr ? nullptr : arena_.take<int32_t>(columns);
  out.columns = order;
  if (loader_ == nullptr) return Status();
  if (order != nullptr)
    ESP_RETURN_IF_ERROR(loader_->put_columns(layout.blocks.front().name, order));
  kc::Int4Destination to{.format = format,
                         .records = data,
                         .out_features = out.out_features,
                         .in_features = out.in_features};
  for (const TensorPart& part : parts_of(layout)) {
    to.rows = static_cast<int32_t>(part.shape[0]);
    ESP_RETURN_IF_ERROR(loader_->put_int4(part, to));
    to.first_row += to.rows;
  }
  return Status();
}

// Of one tensor at once where all of it is loaded, else block by block.
Status WeightPlacer::blocks(const MatrixLayout& layout, std::byte*& data) {
  ESP_RETURN_IF_ERROR(check_shard(layout));
  const StoredForm form = layout.transposed ? StoredForm::kTransposed : StoredForm::kRows;
  const bool whole = layout.shard.whole();
  const size_t count = layout.fused && whole ? 1 : layout.blocks.size();
  for (size_t i = 0; i < count; ++i) {
    MatrixStack block{.name = layout.blocks[i].name,
                      .rows = layout.fused ? layout.out_features() : layout.blocks[i].rows,
                      .columns = layout.in_features};
    if (!whole) block.slice = stored_slice(layout, i);
    ESP_RETURN_IF_ERROR(stored(form, block, data));
    const int64_t elements =
        whole ? block.rows * block.columns : stored_slice(layout, i).num_elements();
    if (data != nullptr) data += elements * element_bytes();
  }
  return Status();
}

Status WeightPlacer::blocks(const VectorLayout& layout, std::byte*& data) {
  return each_run(layout, [&](const WeightBlock& block, const std::optional<TensorSlice>& slice) {
    std::byte* to = data;
    if (data != nullptr) data += (slice ? slice->columns : block.rows) * element_bytes();
    return put(block.name, {block.rows}, slice, to);
  });
}

// The elements of a vector that the layout wants, in its order: all of a block, or a run of them.
Status WeightPlacer::each_run(
    const VectorLayout& layout,
    const std::function<Status(const WeightBlock& block, const std::optional<TensorSlice>& slice)>&
        fn) {
  if (layout.parts.empty()) {
    for (const WeightBlock& block : layout.blocks) ESP_RETURN_IF_ERROR(fn(block, std::nullopt));
    return Status();
  }
  for (const VectorLayout::Part& part : layout.parts) {
    int64_t block_begin = 0;
    for (const WeightBlock& block : layout.blocks) {
      const int64_t begin = std::max(part.first, block_begin);
      const int64_t end = std::min(part.first + part.count, block_begin + block.rows);
      if (begin < end) {
        ESP_RETURN_IF_ERROR(fn(
            block,
            TensorSlice{.rows = 1, .first_column = begin - block_begin, .columns = end - begin}));
      }
      block_begin += block.rows;
    }
  }
  return Status();
}

Status WeightPlacer::vector(const VectorLayout& layout, CudaWeight& out) {
  if (layout.empty()) return Status();
  std::byte* data = stack(1, layout.local_size(), 1, out);
  out.group_stride = 0;
  return blocks(layout, data);
}

void WeightPlacer::pass_over(const std::vector<std::string>& tensors) {
  if (loader_ == nullptr) return;
  for (const std::string& name : tensors) loader_->pass_over(name);
}

std::byte* WeightPlacer::stack(int64_t count, int64_t rows, int64_t columns, CudaWeight& out) {
  std::byte* data = take(count * rows * columns);
  out = {.data = data,
         .in_features = static_cast<int32_t>(columns),
         .out_features = static_cast<int32_t>(rows),
         .group_stride = rows * columns,
         .format = {.type = type_}};
  return data;
}

Status WeightPlacer::floats(const VectorLayout& layout, CudaWeight& out) {
  if (layout.empty()) return Status();
  auto* data = arena_.take<float>(layout.local_size());
  out = {.data = data,
         .in_features = 1,
         .out_features = static_cast<int32_t>(layout.local_size()),
         .format = {.type = DType::kFloat32}};
  return each_run(layout, [&](const WeightBlock& block, const std::optional<TensorSlice>& slice) {
    float* to = data;
    if (data != nullptr) data += slice ? slice->columns : block.rows;
    if (loader_ == nullptr) return Status();
    return loader_->put({block.name, {block.rows}, slice}, DType::kFloat32,
                        reinterpret_cast<std::byte*>(to));
  });
}

Status WeightPlacer::float_matrix(const MatrixLayout& layout, CudaWeight& out) {
  if (layout.empty()) return Status();
  ESP_RETURN_IF_ERROR(check_whole(layout));
  const int64_t rows = layout.out_features(), columns = layout.in_features;
  auto* data = arena_.take<float>(rows * columns);
  out = {.data = data,
         .in_features = static_cast<int32_t>(columns),
         .out_features = static_cast<int32_t>(rows),
         .format = {.type = DType::kFloat32}};
  if (loader_ == nullptr) return Status();
  return loader_->put({layout.blocks.front().name, {rows, columns}, std::nullopt}, DType::kFloat32,
                      reinterpret_cast<std::byte*>(data));
}

}  // namespace espalier
