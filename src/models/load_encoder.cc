#include <memory>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "models/families/family.h"
#include "models/image_encoder.h"
#include "models/image_processor_config.h"
#include "models/model_plan.h"
#include "models/program/cpu_encoder.h"
#include "models/storage_format.h"

namespace espalier {

Result<std::vector<float>> ImageEncoder::prepare(const Image& image) const {
  ESP_ASSIGN_OR_RETURN(const PixelValues pixels, process_image(image, info().processor));
  return cut_patches(pixels, info().patch_size);
}

Result<std::unique_ptr<ImageEncoder>> load_image_encoder(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(const JsonObject config, read_changed_config(options));
  ESP_ASSIGN_OR_RETURN(const std::optional<DecoderSpec> spec, make_encoder_spec(config));
  if (!spec) return std::unique_ptr<ImageEncoder>();
  ESP_ASSIGN_OR_RETURN(const ImageProcessorSpec processor,
                       read_image_processor(options.path, *spec->patches));
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  const DType type = plan.type;
  // Whatever the decoder is stored in, the encoder's matrices are numbers: it is small beside it.
  const WeightTypes types(type);
  ESP_CHECK(options.pool != nullptr);
  std::unique_ptr<ImageEncoder> encoder;
  if (options.format == LoadFormat::kDummy) {
    DummySource source(options.seed, type, *options.pool);
    ESP_ASSIGN_OR_RETURN(
        encoder, program::CpuEncoder::create(*spec, processor, types, source, *options.pool));
  } else {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
    CheckpointSource source(checkpoint, *spec, type, options.pool);
    ESP_ASSIGN_OR_RETURN(
        encoder, program::CpuEncoder::create(*spec, processor, types, source, *options.pool));
  }
  log_info("image encoder loaded parameters={} weight_bytes={} rows_per_image={}",
           encoder->info().num_parameters, encoder->info().weight_bytes, encoder->info().num_rows);
  return encoder;
}

}  // namespace espalier
