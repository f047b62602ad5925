// For tests: a CudaDecoder as a Model, so that what drives models on the CPU drives it too. Copies
// everything in and out at each step, and waits.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "models/cuda/adapter_store.h"
#include "models/cuda/adapter_tiles.h"
#include "models/cuda/decoder.h"
#include "models/model.h"
#include "tensor/cuda/memory.h"

namespace espalier {

// Keys and values lie on the device, in planes of the shape of the view that forward() is given;
// another view (by its first plane) gets new ones. Planes start as NaN: nobody may read what none
// wrote. A failure ends the test program.
class CudaTestModel final : public Model {
 public:
  explicit CudaTestModel(std::unique_ptr<CudaDecoder> decoder);

  const ModelInfo& info() const override { return decoder_->info(); }
  // The batch's page tables are those of layers with a window alone; others find page 0 everywhere.
  void set_windows_own_pages(bool on) { windows_own_pages_ = on; }
  Status reserve(int32_t max_tokens, int32_t max_entries) override;
  // Makes what the first forward() on such a view makes: of ranks all do, and are connected then.
  void prepare(const KvView& kv) { device_view(kv); }
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) override;
  // REQUIRES: the decoder was loaded with enable_lora.
  Result<AdapterInfo> load_adapter(AdapterId id, const std::filesystem::path& folder,
                                   int32_t rank_max) override;
  void unload_adapter(AdapterId id) override { adapters_->unload(id); }

 private:
  struct Row {
    int32_t entry = 0;
    int32_t target = -1;  // -1: the sampled row
  };
  const KvView& device_view(const KvView& host);
  CudaStep upload(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                  std::vector<Row>& rows);
  StepAdapters upload_adapters(const ForwardBatch& batch);
  void find_spans(const ForwardBatch& batch);
  template <typename T>
  const T* put(std::span<const T> values);
  const int32_t* put(std::span<const int32_t> values);

  const std::unique_ptr<CudaDecoder> decoder_;
  std::unique_ptr<CudaAdapterStore> adapters_;  // null until one is loaded
  AdapterTiles tiles_;
  cuda::Stream stream_;
  cuda::DeviceBuffer inputs_, logits_, planes_;
  cuda::Arena inputs_arena_;
  int32_t max_tokens_ = 0, max_entries_ = 0, page_size_ = 0;
  bool windows_own_pages_ = false;
  KvView view_;
  const void* view_of_ = nullptr;
  std::vector<float> host_rows_, sample_logits_;
  std::vector<StepSpan> spans_;  // of a step, on the device
};

}  // namespace espalier
