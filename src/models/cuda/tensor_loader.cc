#include "models/cuda/tensor_loader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
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
#include "kernels/random/cuda.h"
#include "models/weight_source.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {
namespace {

class DummyLoader final : public CudaTensorLoader {
 public:
  DummyLoader(uint64_t seed, cuda::Stream stream) : seed_(seed), stream_(std::move(stream)) {}

  Status put(const TensorPart& part, DType type, std::byte* device) override {
    const TensorSlice whole = TensorSlice::whole(part.shape), slice = part.slice.value_or(whole);
    const auto [key, centre, deviation] = dummy_tensor(seed_, part.name, part.shape);
    return kernels::cuda::draw({.type = type,
                                .out = device,
                                .count = slice.num_elements(),
                                .first = slice.first_row * whole.columns + slice.first_column,
                                .columns = slice.columns,
                                .row_stride = whole.columns,
                                .key = key,
                                .centre = centre,
                                .deviation = deviation},
                               {.stream = stream_.get()});
  }
  Status put_bytes(const std::string& name, std::span<const int64_t>, std::byte*) override {
    return error(StatusCode::kUnimplemented, "'{}': quantised weights cannot be made up", name);
  }
  Status start() override { return Status(); }
  Status finish() override { return stream_.synchronize(); }

 private:
  const uint64_t seed_;
  const cuda::Stream stream_;
};

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
  int64_t size_bytes = 0;         // of the file; of a slice on the device
  DType type = DType::kBFloat16;  // in the file
};

class Files {
 public:
  Files() = default;
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() {
    for (const auto& [path, fd] : open_) ::close(fd);
  }
  Result<int> open(const std::filesystem::path& path) {
    if (const auto it = open_.find(path); it != open_.end()) return it->second;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      return fail(error(StatusCode::kNotFound, "{}: {}", path.string(), std::strerror(errno)));
    }
    open_.emplace(path, fd);
    return fd;
  }

 private:
  std::map<std::filesystem::path, int> open_;
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
    if (chunk.slice.num_elements() > 0) {
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
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(chunk.device, place.buffer.data(), bytes, stream));
    return place.copied.record(stream);
  }
};

class CheckpointLoader final : public CudaTensorLoader {
 public:
  CheckpointLoader(Checkpoint checkpoint, const DecoderSpec& spec, ReportLoaded report)
      : checkpoint_(std::move(checkpoint)),
        source_(checkpoint_, spec),
        report_(std::move(report)) {}

  Status put(const TensorPart& part, DType type, std::byte* device) override {
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, source_.find(part.name, part.shape));
    const bool plain = tensor->reader == nullptr && !part.slice;
    const SafetensorsFile* file = plain ? checkpoint_.find_file(*tensor) : nullptr;
    if (file != nullptr) return add_file_chunks(*tensor, *file, *tensor->dtype, type, device);
    add_decoded_chunks(*tensor, part.slice.value_or(TensorSlice::whole(part.shape)), type, device);
    return Status();
  }

  Status put_bytes(const std::string& name, std::span<const int64_t> shape,
                   std::byte* device) override {
    const auto lent = source_.lend_bytes(name, shape);
    if (!lent) return lent.error();
    source_.give_back(name);
    const CheckpointTensor& tensor = *checkpoint_.find(name);
    const SafetensorsFile* file = checkpoint_.find_file(tensor);
    ESP_CHECK(file != nullptr, "'{}' is no tensor of safetensors", name);
    return add_file_chunks(tensor, *file, kTypeOfBytes, kTypeOfBytes, device);
  }

  ~CheckpointLoader() override {
    next_ = chunks_.size();
    join();
  }

  Status start() override {
    ESP_RETURN_IF_ERROR(source_.finish());
    const size_t count = std::clamp<size_t>(
        chunks_.size(), 1, std::clamp(std::thread::hardware_concurrency(), 1u, kMostReaders));
    num_reading_ = count;
    for (size_t i = 0; i < count; ++i) {
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
    for (const CheckpointTensor* tensor : decoded_) checkpoint_.release(*tensor);
    decoded_.clear();
    return failed_;
  }

 private:
  static constexpr DType kTypeOfBytes = DType::kBFloat16;  // any: they are not converted

  // Runs of the file's bytes, converted where the types differ.
  Status add_file_chunks(const CheckpointTensor& tensor, const SafetensorsFile& file, DType type,
                         DType to_type, std::byte* device) {
    ESP_ASSIGN_OR_RETURN(const int fd, files_.open(file.path()));
    const int64_t begin = file.offset_of(tensor.bytes);
    const auto size = static_cast<int64_t>(tensor.bytes.size());
    const auto from_size = static_cast<int64_t>(dtype_size(type));
    const auto to_size = static_cast<int64_t>(dtype_size(to_type));
    const int64_t step = kChunkBytes / std::max(from_size, to_size) * from_size;
    for (int64_t at = 0; at < size; at += step) {
      chunks_.push_back({.tensor = &tensor,
                         .device = device + at / from_size * to_size,
                         .to_type = to_type,
                         .fd = fd,
                         .offset = begin + at,
                         .size_bytes = std::min(step, size - at),
                         .type = type});
    }
    return Status();
  }

  // Slices that the reading threads decode, of rows as far as they fit into a buffer.
  void add_decoded_chunks(const CheckpointTensor& tensor, const TensorSlice& slice, DType type,
                          std::byte* device) {
    const auto size = static_cast<int64_t>(dtype_size(type));
    const int64_t most = kChunkBytes / size;  // elements
    const int64_t columns = std::min(most, slice.columns);
    const int64_t rows = columns < slice.columns ? 1 : most / columns;
    for (int64_t row = 0; row < slice.rows; row += rows) {
      for (int64_t column = 0; column < slice.columns; column += columns) {
        const TensorSlice part{.first_row = slice.first_row + row,
                               .rows = std::min(rows, slice.rows - row),
                               .first_column = slice.first_column + column,
                               .columns = std::min(columns, slice.columns - column)};
        chunks_.push_back({.tensor = &tensor,
                           .device = device + (row * slice.columns + column) * size,
                           .to_type = type,
                           .slice = part,
                           .size_bytes = part.num_elements() * size});
      }
    }
    decoded_.insert(&tensor);
  }

  // Until all is read.
  void report_progress() {
    int64_t total = 0;
    for (const Chunk& chunk : chunks_) total += chunk.size_bytes;
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
    if (!status.ok()) next_ = chunks_.size();
    std::lock_guard lock(mutex_);
    if (failed_.ok()) failed_ = std::move(status);
    if (--num_reading_ == 0) read_.notify_all();
  }

  Status read_until_done() {
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    ESP_ASSIGN_OR_RETURN(Reader reader, Reader::create());
    int turn = 0;
    for (size_t i = next_++; i < chunks_.size(); i = next_++) {
      ESP_RETURN_IF_ERROR(reader.load(chunks_[i], turn++));
      num_read_bytes_ += chunks_[i].size_bytes;
    }
    return reader.stream.synchronize();
  }

  const int32_t device_ = cuda::current_device();
  const Checkpoint checkpoint_;
  CheckpointSource source_;
  const ReportLoaded report_;
  Files files_;
  std::vector<Chunk> chunks_;
  std::set<const CheckpointTensor*> decoded_;  // their mapped pages go when all is loaded
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> num_read_bytes_{0};
  std::mutex mutex_;  // of what follows
  std::condition_variable read_;
  size_t num_reading_ = 0;  // threads
  Status failed_;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace

Result<std::unique_ptr<CudaTensorLoader>> make_checkpoint_loader(const ModelLoadOptions& options,
                                                                 const DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(options.path));
  return std::make_unique<CheckpointLoader>(std::move(checkpoint), spec, options.progress);
}

Result<std::unique_ptr<CudaTensorLoader>> make_dummy_loader(uint64_t seed) {
  ESP_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create());
  return std::make_unique<DummyLoader>(seed, std::move(stream));
}

}  // namespace espalier
