#include "models/cuda/tensor_loader.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "kernels/linear/quantize_rows.h"
#include "models/cuda/open_files.h"
#include "models/weight_source.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"
#include "tensor/float16.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

// Rows [row, row + rows) of those of `to`.
kc::Mxfp4Destination rows_of(kc::Mxfp4Destination to, int64_t row, int64_t rows) {
  to.first_row += static_cast<int32_t>(row) * to.row_step;
  to.rows = static_cast<int32_t>(rows);
  return to;
}

// One thread copies from the page cache at about 10 GB/s, the device from pinned memory at 55.
constexpr unsigned kMostReaders = 8;
constexpr int64_t kChunkBytes = 4 << 20;  // of the file or, where that is more, of the device
constexpr int kBuffers = 2;               // a reader's: one is filled while the other is copied

// A part of a tensor: where it lies in its file, and where its elements go.
struct Chunk {
  const CheckpointTensor* tensor = nullptr;
  std::byte* device = nullptr;
  DType to_type = DType::kBFloat16;  // on the device; bytes are taken as they are
  // Elements that are decoded from the mapped file; none: a run of the file's bytes.
  TensorSlice slice;
  int fd = -1;
  int64_t offset = 0;
  int64_t size_bytes = 0;            // of the file; of a slice as it is copied to the device
  DType type = DType::kBFloat16;     // in the file
  const std::byte* codes = nullptr;  // e4m3 in the mapped file, whose slice is taken as it is
  int64_t row_bytes = 0;             // from one row of those to the next
  // Of whole rows that become e4m3 on the device: their columns and scales.
  int64_t columns = 0;
  float* scales = nullptr;
  // Of whole rows that become records of 4 bits, or of a slice of codes that do.
  std::optional<kc::Int4Destination> int4;
  bool int4_codes = false;
  // Of whole rows of blocks that become records of MXFP4, and of their scales in the file.
  struct Mxfp4 {
    kc::Mxfp4Destination to;
    const CheckpointTensor* scales = nullptr;
    int fd = -1;
    int64_t offset = 0;
  };
  std::optional<Mxfp4> mxfp4;
  std::optional<kc::Mxfp4Destination> rounded_mxfp4;  // of whole rows that are rounded
};

Status read_all(const Chunk& chunk, std::byte* to) {
  int64_t done = 0;
  while (done < chunk.size_bytes) {
    const ssize_t got = ::pread(chunk.fd, to + done, static_cast<size_t>(chunk.size_bytes - done),
                                chunk.offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return error(StatusCode::kDataLoss, "the tensor '{}' cannot be read: {}", chunk.tensor->name,
                   got == 0 ? "the file ends before it" : std::strerror(errno));
    }
    done += got;
  }
  return Status();
}

float element(const std::byte* data, DType type, int64_t i) {
  if (type == DType::kFloat32) {
    float value;
    std::memcpy(&value, data + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + 2 * i, 2);
  return type == DType::kBFloat16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
}

void convert(const std::byte* from, DType from_type, int64_t count, DType type, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = element(from, from_type, i);
    if (type == DType::kFloat32) {
      std::memcpy(to + 4 * i, &value, 4);
    } else {
      const uint16_t bits = to_bfloat16(value).bits;
      std::memcpy(to + 2 * i, &bits, 2);
    }
  }
}

// A slice of a tensor's codes of 4 bits as one buffer: lines of codes, then the scales and zero
// points of each row and group, then columns, or of NVFP4 the rows' scales, all at multiples of 16
// bytes.
class Int4Codes {
 public:
  explicit Int4Codes(const Chunk& chunk)
      : to_(*chunk.int4),
        slice_(chunk.slice),
        reader_(*chunk.tensor->reader),
        stored_(*reader_.int4()) {
    using Order = StoredInt4::Order;
    const bool of_rows = lines_are_rows(stored_);
    const int64_t row = slice_.first_row, column = slice_.first_column;
    lines_ = of_rows ? slice_.rows : slice_.columns / (stored_.order == Order::kColumns ? 8 : 1);
    first_line_ = of_rows ? row : column / (stored_.order == Order::kColumns ? 8 : 1);
    switch (stored_.order) {
      case Order::kRows:
        line_bytes_ = slice_.columns / 2, offset_ = column / 2;
        break;
      case Order::kColumns:
        line_bytes_ = slice_.rows * 4, offset_ = row * 4;
        break;
      case Order::kAwq:
        line_bytes_ = slice_.rows / 2, offset_ = row / 2;
        break;
      case Order::kQ4_0:
        line_bytes_ = slice_.columns / 32 * 18, offset_ = column / 32 * 18;
        break;
    }
    scales_at_ = round_up(lines_ * line_bytes_);
    const bool nvfp4 = to_.format.nvfp4();
    zeros_at_ = scales_at_ + round_up(slice_.rows * groups() * (nvfp4 ? 1 : 2));
    columns_at_ = zeros_at_ + round_up(nvfp4 ? 0 : slice_.rows * groups());
  }

  static bool lines_are_rows(const StoredInt4& stored) {
    return stored.order == StoredInt4::Order::kRows || stored.order == StoredInt4::Order::kQ4_0;
  }

  // Of a row, or of 256 inputs of a row, with scales and zero points.
  static constexpr int64_t most_bytes(int64_t columns) {
    return columns * 18 / 32 + columns / 32 * 3;
  }

  // Returns the bytes written.
  int64_t copy(std::byte* to) const {
    for (int64_t i = 0; i < lines_; ++i) {
      const int64_t line = first_line_ + i;
      const int64_t from = stored_.rows.empty() ? line : stored_.rows[static_cast<size_t>(line)];
      std::memcpy(to + i * line_bytes_, stored_.data + from * stored_.line_bytes + offset_,
                  static_cast<size_t>(line_bytes_));
    }
    if (to_.format.nvfp4()) return copy_e4m3_scales(to);
    auto* scales = reinterpret_cast<Float16*>(to + scales_at_);
    auto* zeros = reinterpret_cast<uint8_t*>(to + zeros_at_);
    for (int64_t row = slice_.first_row; row < slice_.first_row + slice_.rows; ++row) {
      for (int64_t group = 0; group < groups(); ++group) {
        const int64_t input = slice_.first_column + group * to_.format.group;
        const int64_t column =
            stored_.columns == nullptr ? input : (*stored_.columns)[static_cast<size_t>(input)];
        *scales++ = to_float16(reader_.int4_scale(row, column));
        *zeros++ = reader_.int4_zero(row, column);
      }
    }
    if (stored_.columns == nullptr) return zeros_at_ + slice_.rows * groups();
    const auto columns = std::as_bytes(std::span(*stored_.columns));
    std::ranges::copy(columns, to + columns_at_);
    return columns_at_ + std::ssize(columns);
  }

  Status repack(const std::byte* from, const cuda::Stream& stream) const {
    static_assert(static_cast<int>(kc::Int4Order::kQ4_0) ==
                  static_cast<int>(StoredInt4::Order::kQ4_0));
    return kc::repack_int4({.order = static_cast<kc::Int4Order>(stored_.order),
                            .codes = from,
                            .line_bytes = line_bytes_,
                            .scales = from + scales_at_,
                            .row_scales = reinterpret_cast<const float*>(from + columns_at_),
                            .zeros = reinterpret_cast<const uint8_t*>(from + zeros_at_),
                            .columns = stored_.columns == nullptr
                                           ? nullptr
                                           : reinterpret_cast<const int32_t*>(from + columns_at_),
                            .first_input = static_cast<int32_t>(slice_.first_column),
                            .inputs = static_cast<int32_t>(slice_.columns),
                            .to = to_},
                           {.stream = stream.get()});
  }

 private:
  // Those of NVFP4, and a float32 for each row in the place of columns.
  int64_t copy_e4m3_scales(std::byte* to) const {
    const std::byte* from = stored_.e4m3_scales + slice_.first_row * groups();
    std::copy_n(from, slice_.rows * groups(), to + scales_at_);
    std::fill_n(reinterpret_cast<float*>(to + columns_at_), slice_.rows, stored_.scale_of_all);
    return columns_at_ + slice_.rows * static_cast<int64_t>(sizeof(float));
  }
  static int64_t round_up(int64_t bytes) { return (bytes + 15) / 16 * 16; }
  int64_t groups() const { return (slice_.columns + to_.format.group - 1) / to_.format.group; }

  const kc::Int4Destination to_;
  const TensorSlice slice_;
  const TensorReader& reader_;
  const StoredInt4 stored_;
  int64_t lines_ = 0, first_line_ = 0, line_bytes_ = 0, offset_ = 0;
  int64_t scales_at_ = 0, zeros_at_ = 0, columns_at_ = 0;
};

// What one thread of the loading needs; made before the threads start.
struct Reader {
  cuda::Stream stream;
  struct Place {
    cuda::PinnedBuffer buffer;
    cuda::Event copied;
    bool used = false;
  };
  Place places[kBuffers];
  std::vector<std::byte> scratch;  // of chunks that are converted
  cuda::DeviceBuffer staging;      // of chunks that become e4m3

  static Result<Reader> create() {
    Reader reader;
    ESP_ASSIGN_OR_RETURN(reader.stream, cuda::Stream::create());
    for (Place& place : reader.places) {
      ESP_ASSIGN_OR_RETURN(place.buffer,
                           cuda::PinnedBuffer::allocate(kChunkBytes, "reading weights"));
      ESP_ASSIGN_OR_RETURN(place.copied, cuda::Event::create());
    }
    return reader;
  }

  Status load(const Chunk& chunk, int turn) {
    Place& place = places[turn % kBuffers];
    if (place.used) ESP_RETURN_IF_ERROR(place.copied.synchronize());
    place.used = true;
    int64_t bytes = chunk.size_bytes;
    if (chunk.mxfp4) {
      ESP_ASSIGN_OR_RETURN(bytes, read_mxfp4(chunk, place.buffer.data()));
    } else if (chunk.int4_codes) {
      bytes = Int4Codes(chunk).copy(place.buffer.data());
    } else if (chunk.codes != nullptr) {
      copy_codes(chunk, place.buffer.data());
    } else if (chunk.slice.num_elements() > 0) {
      copy_slice(*chunk.tensor, chunk.slice, chunk.to_type, place.buffer.data());
    } else if (chunk.type == chunk.to_type) {
      ESP_RETURN_IF_ERROR(read_all(chunk, place.buffer.data()));
    } else {
      scratch.resize(static_cast<size_t>(kChunkBytes));
      ESP_RETURN_IF_ERROR(read_all(chunk, scratch.data()));
      const int64_t count = bytes / static_cast<int64_t>(dtype_size(chunk.type));
      convert(scratch.data(), chunk.type, count, chunk.to_type, place.buffer.data());
      bytes = count * static_cast<int64_t>(dtype_size(chunk.to_type));
    }
    std::byte* to = chunk.device;
    const bool rounds = chunk.scales != nullptr || chunk.int4 || chunk.rounded_mxfp4;
    if (rounds || chunk.mxfp4) {
      if (staging.size_bytes() == 0) {
        ESP_ASSIGN_OR_RETURN(staging,
                             cuda::DeviceBuffer::allocate(kChunkBytes, "weights on their way"));
      }
      to = staging.data();
    }
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(to, place.buffer.data(), bytes, stream));
    ESP_RETURN_IF_ERROR(place.copied.record(stream));
    if (chunk.int4_codes) return Int4Codes(chunk).repack(staging.data(), stream);
    if (chunk.mxfp4) return repack_mxfp4(chunk);
    return rounds ? quantize(chunk, bytes) : Status();
  }

  static void copy_codes(const Chunk& chunk, std::byte* to) {
    const TensorSlice& slice = chunk.slice;
    for (int64_t row = 0; row < slice.rows; ++row) {
      const std::byte* from =
          chunk.codes + (slice.first_row + row) * chunk.row_bytes + slice.first_column;
      to = std::copy_n(from, slice.columns, to);
    }
  }

  // Blocks, then scales; returns the bytes of both.
  static Result<int64_t> read_mxfp4(const Chunk& chunk, std::byte* to) {
    ESP_RETURN_IF_ERROR(read_all(chunk, to));
    const Chunk scales{.tensor = chunk.mxfp4->scales,
                       .fd = chunk.mxfp4->fd,
                       .offset = chunk.mxfp4->offset,
                       .size_bytes = chunk.size_bytes / kc::kMxfp4BlockBytes};
    ESP_RETURN_IF_ERROR(read_all(scales, to + chunk.size_bytes));
    return chunk.size_bytes + scales.size_bytes;
  }

  Status repack_mxfp4(const Chunk& chunk) {
    const auto* scales = reinterpret_cast<const uint8_t*>(staging.data() + chunk.size_bytes);
    return kc::repack_mxfp4({.blocks = staging.data(), .scales = scales, .to = chunk.mxfp4->to},
                            {.stream = stream.get()});
  }

  Status quantize(const Chunk& chunk, int64_t bytes) {
    const int64_t row_bytes = chunk.columns * static_cast<int64_t>(dtype_size(chunk.to_type));
    if (chunk.int4) {
      return kc::quantize_int4({.type = chunk.to_type,
                                .x = staging.data(),
                                .x_stride = chunk.columns,
                                .to = *chunk.int4},
                               {.stream = stream.get()});
    }
    if (chunk.rounded_mxfp4) {
      return kc::quantize_mxfp4({.type = chunk.to_type,
                                 .x = staging.data(),
                                 .x_stride = chunk.columns,
                                 .to = *chunk.rounded_mxfp4},
                                {.stream = stream.get()});
    }
    return kc::quantize_rows({.type = chunk.to_type,
                              .x = staging.data(),
                              .x_stride = chunk.columns,
                              .y = reinterpret_cast<uint8_t*>(chunk.device),
                              .scales = chunk.scales,
                              .rows = static_cast<int32_t>(bytes / row_bytes),
                              .dim = static_cast<int32_t>(chunk.columns)},
                             {.stream = stream.get()});
  }
};

// Of a slice that begins with a block, as GEMMs read them.
std::vector<float> block_scales(const StoredE4m3& stored, const TensorSlice& slice) {
  const int64_t rows = kc::scale_blocks(slice.rows), stride = kc::block_scale_stride(slice.columns);
  std::vector<float> out(static_cast<size_t>(rows * stride));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = (slice.first_row / kc::kScaleBlock + row) * stored.block_columns +
                         slice.first_column / kc::kScaleBlock;
    std::ranges::copy(stored.scales.subspan(static_cast<size_t>(from),
                                            static_cast<size_t>(kc::scale_blocks(slice.columns))),
                      out.begin() + row * stride);
  }
  return out;
}

// What is to be read, chunk by chunk, and the scales of codes, which the host has at once.
class ChunkList {
 public:
  // Where elements go: as to_type, or, with scales, as e4m3 rounded from that.
  struct Destination {
    std::byte* device = nullptr;
    DType to_type = DType::kBFloat16;
    int64_t columns = 0;
    float* scales = nullptr;
    std::optional<kc::Int4Destination> int4;
    std::optional<kc::Mxfp4Destination> mxfp4;

    // Of which a chunk has whole multiples.
    int64_t rows() const { return int4 ? kc::kInt4Rows : 1; }
    bool rounds() const { return scales != nullptr || int4 || mxfp4; }
    Chunk chunk(const CheckpointTensor& tensor, int64_t first_element, int64_t elements) const {
      const auto size = scales != nullptr ? 1 : static_cast<int64_t>(dtype_size(to_type));
      Chunk out = chunk_of(tensor, first_element, size);
      if (mxfp4) out.rounded_mxfp4 = rows_of(*mxfp4, first_element / columns, elements / columns);
      if (!int4) return out;
      out.int4 = int4;
      out.int4->first_row += static_cast<int32_t>(first_element / columns);
      out.int4->rows = static_cast<int32_t>(elements / columns);
      return out;
    }

   private:
    Chunk chunk_of(const CheckpointTensor& tensor, int64_t first_element, int64_t size) const {
      return {.tensor = &tensor,
              .device = device + first_element * size,
              .to_type = to_type,
              .columns = columns,
              .scales = scales == nullptr ? nullptr : scales + first_element / columns};
    }
  };

  // Runs of the file's bytes, converted where the types differ.
  Status add_file(const CheckpointTensor& tensor, const SafetensorsFile& file, DType type,
                  const Destination& to) {
    ESP_ASSIGN_OR_RETURN(const int fd, files_.open(file.path()));
    const int64_t begin = file.offset_of(tensor.bytes);
    const auto size = static_cast<int64_t>(tensor.bytes.size());
    const auto from_size = static_cast<int64_t>(dtype_size(type));
    const auto to_size = static_cast<int64_t>(dtype_size(to.to_type));
    int64_t elements = kChunkBytes / std::max(from_size, to_size);
    if (to.rounds()) elements = elements / (to.rows() * to.columns) * (to.rows() * to.columns);
    const int64_t step = elements * from_size;
    for (int64_t at = 0; at < size; at += step) {
      Chunk chunk = to.chunk(tensor, at / from_size, std::min(step, size - at) / from_size);
      chunk.fd = fd;
      chunk.offset = begin + at;
      chunk.size_bytes = std::min(step, size - at);
      chunk.type = type;
      chunks_.push_back(chunk);
    }
    return Status();
  }

  Status add_codes(const CheckpointTensor& tensor, const TensorSlice& slice, std::byte* device,
                   float* scales) {
    const StoredE4m3 stored = *tensor.reader->e4m3();
    const int64_t rows = std::max<int64_t>(1, kChunkBytes / slice.columns);
    for (int64_t row = 0; row < slice.rows; row += rows) {
      TensorSlice part = slice;
      part.first_row += row;
      part.rows = std::min(rows, slice.rows - row);
      chunks_.push_back({.tensor = &tensor,
                         .device = device + row * slice.columns,
                         .slice = part,
                         .size_bytes = part.num_elements(),
                         .codes = stored.data,
                         .row_bytes = tensor.shape[1]});
    }
    decoded_.insert(&tensor);
    std::vector<float>& values = scales_.emplace_back(scales, std::vector<float>()).second;
    if (stored.block_columns > 0) {
      values = block_scales(stored, slice);
      return Status();
    }
    for (int64_t row = 0; row < slice.rows; ++row) {
      values.push_back(stored.scale(slice.first_row + row));
    }
    return Status();
  }

  // Codes of 4 bits and what belongs to them: as many rows, or inputs, as fit into a buffer.
  void add_int4(const CheckpointTensor& tensor, const kc::Int4Destination& to) {
    const int64_t columns = tensor.shape[1], all_rows = tensor.shape[0];
    const StoredInt4 stored = *tensor.reader->int4();
    const int64_t room = kChunkBytes - 64 - (stored.columns == nullptr ? 0 : columns * 4);
    // Columns in another order are read as a whole.
    const bool of_rows = Int4Codes::lines_are_rows(stored) || stored.columns != nullptr;
    const int64_t least = of_rows ? columns : kc::kInt4Inputs;  // columns of a chunk
    const int64_t rows =
        std::min(all_rows, room / Int4Codes::most_bytes(least) / kc::kInt4Rows * kc::kInt4Rows);
    const int64_t step =
        of_rows ? columns
                : std::max<int64_t>(1, room / (rows * Int4Codes::most_bytes(least))) * least;
    for (int64_t row = 0; row < all_rows; row += rows) {
      for (int64_t column = 0; column < columns; column += step) {
        Chunk chunk{.tensor = &tensor,
                    .slice = {.first_row = row,
                              .rows = std::min(rows, all_rows - row),
                              .first_column = column,
                              .columns = std::min(step, columns - column)},
                    .int4 = to,
                    .int4_codes = true};
        chunk.size_bytes = chunk.slice.num_elements() / 2;
        chunk.int4->first_row += static_cast<int32_t>(row);
        chunk.int4->rows = static_cast<int32_t>(chunk.slice.rows);
        chunks_.push_back(chunk);
      }
    }
    decoded_.insert(&tensor);
  }

  void add_columns(const std::vector<int32_t>& columns, int32_t* device) {
    columns_.emplace_back(device, columns);
  }

  // A stack's blocks and scales, as many rows as fit into a buffer.
  Status add_mxfp4(const CheckpointTensor& blocks, const SafetensorsFile& blocks_file,
                   const CheckpointTensor& scales, const SafetensorsFile& scales_file,
                   const kc::Mxfp4Destination& to) {
    ESP_ASSIGN_OR_RETURN(const int fd, files_.open(blocks_file.path()));
    ESP_ASSIGN_OR_RETURN(const int scales_fd, files_.open(scales_file.path()));
    const int64_t row_scales = to.shape.in_features / kc::kMxfp4Block;
    const int64_t row_bytes = row_scales * kc::kMxfp4BlockBytes;
    const int64_t step = kChunkBytes / (row_bytes + row_scales);
    for (int64_t matrix = 0; matrix < blocks.shape[0]; ++matrix) {
      for (int64_t row = 0; row < to.rows; row += step) {
        const int64_t at = matrix * to.rows + row;
        Chunk chunk{.tensor = &blocks, .fd = fd};
        chunk.offset = blocks_file.offset_of(blocks.bytes) + at * row_bytes;
        chunk.mxfp4 = {.to = to,
                       .scales = &scales,
                       .fd = scales_fd,
                       .offset = scales_file.offset_of(scales.bytes) + at * row_scales};
        kc::Mxfp4Destination& part = chunk.mxfp4->to;
        part = rows_of(to, row, std::min(step, to.rows - row));
        part.records = static_cast<std::byte*>(to.records) + matrix * to.shape.size_bytes();
        chunk.size_bytes = part.rows * row_bytes;
        chunks_.push_back(chunk);
      }
    }
    return Status();
  }

  // And orders of columns.
  Status copy_scales() {
    ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
    const auto copy = [&](const auto& all) -> Status {
      for (const auto& [device, values] : all) {
        const auto bytes = std::as_bytes(std::span(values));
        ESP_RETURN_IF_ERROR(cuda::copy_to_device(device, bytes.data(), std::ssize(bytes), stream));
      }
      return Status();
    };
    ESP_RETURN_IF_ERROR(copy(scales_));
    ESP_RETURN_IF_ERROR(copy(columns_));
    ESP_RETURN_IF_ERROR(stream.synchronize());
    scales_.clear(), columns_.clear();
    return Status();
  }

  // Slices that the reading threads decode, of rows as far as they fit into a buffer.
  void add_decoded(const CheckpointTensor& tensor, const TensorSlice& slice,
                   const Destination& to) {
    const auto size = static_cast<int64_t>(dtype_size(to.to_type));
    const int64_t most = kChunkBytes / size;  // elements
    const int64_t columns = std::min(most, slice.columns);
    const int64_t rows = columns < slice.columns ? 1 : most / columns / to.rows() * to.rows();
    for (int64_t row = 0; row < slice.rows; row += rows) {
      for (int64_t column = 0; column < slice.columns; column += columns) {
        const TensorSlice part{.first_row = slice.first_row + row,
                               .rows = std::min(rows, slice.rows - row),
                               .first_column = slice.first_column + column,
                               .columns = std::min(columns, slice.columns - column)};
        Chunk chunk = to.chunk(tensor, row * slice.columns + column, part.num_elements());
        chunk.slice = part;
        chunk.size_bytes = part.num_elements() * size;
        chunks_.push_back(chunk);
      }
    }
    decoded_.insert(&tensor);
  }

  const std::vector<Chunk>& chunks() const { return chunks_; }
  // Tensors that are read from mapped pages.
  const std::set<const CheckpointTensor*>& decoded() const { return decoded_; }

 private:
  OpenFiles files_;
  std::vector<Chunk> chunks_;
  std::vector<std::pair<float*, std::vector<float>>> scales_;  // until copy_scales()
  std::vector<std::pair<int32_t*, std::vector<int32_t>>> columns_;
  std::set<const CheckpointTensor*> decoded_;
};

// Whether stored codes go into records of a format as they are.
bool fits(const kc::Int4Format& stored, const kc::Int4Format& format) {
  return stored.nvfp4() == format.nvfp4() && stored.group >= format.group &&
         (format.zeros || !stored.zeros);
}

size_t num_readers(size_t chunks) {
  return std::clamp<size_t>(chunks, 1,
                            std::clamp(std::thread::hardware_concurrency(), 1u, kMostReaders));
}

class CheckpointLoader final : public CudaTensorLoader {
 public:
  // some: tensors that the checkpoint lacks are left out.
  CheckpointLoader(Checkpoint checkpoint, const DecoderSpec& spec, ReportLoaded report, bool some)
      : some_(some),
        checkpoint_(std::move(checkpoint)),
        source_(checkpoint_, spec),
        report_(std::move(report)) {}

  bool loads(const std::string& name) const override { return !some_ || source_.has(name); }

  Status put(const TensorPart& part, DType type, std::byte* device) override {
    if (!loads(part.name)) return Status();
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, source_.find(part.name, part.shape));
    const bool plain = tensor->reader == nullptr && !part.slice;
    const SafetensorsFile* file = plain ? checkpoint_.find_file(*tensor) : nullptr;
    if (file != nullptr) {
      return list_.add_file(*tensor, *file, *tensor->dtype, {.device = device, .to_type = type});
    }
    list_.add_decoded(*tensor, part.slice.value_or(TensorSlice::whole(part.shape)),
                      {.device = device, .to_type = type});
    return Status();
  }

  WeightCodes stored_codes(const std::string& name) const override {
    return espalier::stored_codes(checkpoint_.find(name));
  }

  Status put_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    if (!loads(part.name)) return Status();
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, source_.find(part.name, part.shape));
    const TensorSlice slice = part.slice.value_or(TensorSlice::whole(part.shape));
    const WeightCodes stored = stored_codes(part.name);
    if (stored.e4m3 && !stored.block_scales) {
      return list_.add_codes(*tensor, slice, device, scales);
    }
    return add_rounded(*tensor, part,
                       {.device = device, .columns = slice.columns, .scales = scales});
  }

  Status put_block_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    if (!loads(part.name)) return Status();
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, source_.find(part.name, part.shape));
    return list_.add_codes(*tensor, part.slice.value_or(TensorSlice::whole(part.shape)), device,
                           scales);
  }

  Status put_int4(const TensorPart& part, const kc::Int4Destination& to) override {
    if (!loads(part.name)) return Status();
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, source_.find(part.name, part.shape));
    if (fits(stored_codes(part.name).int4, to.format)) {
      list_.add_int4(*tensor, to);
      return Status();
    }
    return add_rounded(*tensor, part, {.columns = part.shape[1], .int4 = to});
  }

  Status put_columns(const std::string& name, int32_t* device) override {
    if (!loads(name)) return Status();
    const WeightCodes stored = stored_codes(name);
    ESP_CHECK(stored.int4_columns != nullptr, "'{}' has its columns in their own order", name);
    list_.add_columns(*stored.int4_columns, device);
    return Status();
  }

  Status put_rounded_mxfp4(const TensorPart& part, const kc::Mxfp4Destination& to) override {
    if (some_) return loads(part.name) ? refuse_records(part.name) : Status();
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, source_.find(part.name, part.shape));
    return add_rounded(*tensor, part, {.columns = part.shape[1], .mxfp4 = to});
  }

  Status put_bytes(const std::string& name, std::span<const int64_t> shape,
                   std::byte* device) override {
    ESP_ASSIGN_OR_RETURN(const Stored stored, find_bytes(name, shape));
    return list_.add_file(*stored.tensor, *stored.file, kTypeOfBytes,
                          {.device = device, .to_type = kTypeOfBytes});
  }

  Status put_mxfp4(const std::string& name, int64_t count,
                   const kc::Mxfp4Destination& to) override {
    if (some_) return loads(name + "_blocks") ? refuse_records(name + "_blocks") : Status();
    const int64_t row_blocks = to.shape.in_features / kc::kMxfp4Block;
    const int64_t block_shape[] = {count, to.rows, row_blocks, kc::kMxfp4BlockBytes};
    ESP_ASSIGN_OR_RETURN(const Stored blocks, find_bytes(name + "_blocks", block_shape));
    ESP_ASSIGN_OR_RETURN(const Stored scales,
                         find_bytes(name + "_scales", std::span(block_shape).first(3)));
    return list_.add_mxfp4(*blocks.tensor, *blocks.file, *scales.tensor, *scales.file, to);
  }

  void pass_over(const std::string& name) override { source_.pass_over(name); }

  ~CheckpointLoader() override {
    next_ = list_.chunks().size();
    join();
  }
  Status check() override { return source_.finish(); }

  Status start() override {
    ESP_RETURN_IF_ERROR(check());
    ESP_RETURN_IF_ERROR(list_.copy_scales());
    num_reading_ = num_readers(list_.chunks().size());
    for (size_t i = num_reading_; i > 0; --i) {
      threads_.emplace_back([this] {
        set_thread_name("load");
        read_chunks();
      });
    }
    return Status();
  }

  Status finish() override {
    report_progress();
    join();
    for (const CheckpointTensor* tensor : list_.decoded()) checkpoint_.release(*tensor);
    return failed_;
  }

 private:
  struct Stored {
    const CheckpointTensor* tensor;
    const SafetensorsFile* file;
  };
  // A tensor of U8.
  Result<Stored> find_bytes(const std::string& name, std::span<const int64_t> shape) {
    const auto lent = source_.lend_bytes(name, shape);
    if (!lent) return fail(lent.error());
    source_.give_back(name);
    const CheckpointTensor& tensor = *checkpoint_.find(name);
    const SafetensorsFile* file = checkpoint_.find_file(tensor);
    ESP_CHECK(file != nullptr, "'{}' is no tensor of safetensors", name);
    return Stored{&tensor, file};
  }

  // From the values as they are stored, not from their bfloat16.
  Status add_rounded(const CheckpointTensor& tensor, const TensorPart& part,
                     ChunkList::Destination to) {
    const bool plain = tensor.reader == nullptr && !part.slice;
    const SafetensorsFile* file = plain ? checkpoint_.find_file(tensor) : nullptr;
    const bool bf16 = file != nullptr && tensor.dtype == DType::kBFloat16;
    to.to_type = bf16 ? DType::kBFloat16 : DType::kFloat32;
    if (file != nullptr) return list_.add_file(tensor, *file, *tensor.dtype, to);
    list_.add_decoded(tensor, part.slice.value_or(TensorSlice::whole(part.shape)), to);
    return Status();
  }

  static constexpr DType kTypeOfBytes = DType::kBFloat16;  // any: they are not converted

  // Until all is read.
  void report_progress() {
    int64_t total = 0;
    for (const Chunk& chunk : list_.chunks()) total += chunk.size_bytes;
    const SteadyClock clock;
    LoadProgress progress(report_, total, clock);
    std::unique_lock lock(mutex_);
    while (num_reading_ > 0) {
      read_.wait_for(lock, std::chrono::milliseconds(100));
      progress.set(num_read_bytes_);
    }
    if (failed_.ok()) progress.finish();
  }

  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void read_chunks() {
    Status status = read_until_done();
    if (!status.ok()) next_ = list_.chunks().size();
    std::lock_guard lock(mutex_);
    if (failed_.ok()) failed_ = std::move(status);
    if (--num_reading_ == 0) read_.notify_all();
  }

  Status read_until_done() {
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    ESP_ASSIGN_OR_RETURN(Reader reader, Reader::create());
    int turn = 0;
    for (size_t i = next_++; i < list_.chunks().size(); i = next_++) {
      ESP_RETURN_IF_ERROR(reader.load(list_.chunks()[i], turn++));
      num_read_bytes_ += list_.chunks()[i].size_bytes;
    }
    return reader.stream.synchronize();
  }

  const int32_t device_ = cuda::current_device();
  const bool some_;
  const Checkpoint checkpoint_;
  CheckpointSource source_;
  const ReportLoaded report_;
  ChunkList list_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> num_read_bytes_{0};
  std::mutex mutex_;  // of what follows
  std::condition_variable read_;
  size_t num_reading_ = 0;  // threads
  Status failed_;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace

Status refuse_records(const std::string& name) {
  return error(StatusCode::kUnimplemented,
               "the tensor '{}' is held in codes, whose records are not replaced in part: give a "
               "whole checkpoint",
               name);
}

Result<std::unique_ptr<CudaTensorLoader>> make_checkpoint_loader(const ModelLoadOptions& options,
                                                                 const DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(options.path));
  return std::make_unique<CheckpointLoader>(std::move(checkpoint), spec, options.progress, false);
}

Result<std::unique_ptr<CudaTensorLoader>> make_partial_loader(const std::filesystem::path& file,
                                                              const DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open_file(file));
  return std::make_unique<CheckpointLoader>(std::move(checkpoint), spec, nullptr, true);
}

}  // namespace espalier
