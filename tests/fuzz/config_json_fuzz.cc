// libFuzzer: bytes as config.json, changed by what stands behind a line of "----" in them, up to
// the list of tensors that the model would have.
#include <string_view>

#include "checkpoint/json_object.h"
#include "models/families/family.h"
#include "models/weight_layout.h"

namespace {

// A tower of layers is allowed and makes long lists: those of a few tell as much.
constexpr size_t kLayersMax = 64;

void read(const espalier::JsonObject& config) {
  const auto spec = espalier::make_decoder_spec(config);
  if (!spec || spec->layers.size() > kLayersMax) return;
  if (spec->num_parameters() < 0) return;
  for (const espalier::LayerSpec& layer : spec->layers) {
    if (layer.experts && layer.experts->router.num_experts > 64) return;
  }
  espalier::weight_layout(*spec);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kMark = "\n----\n";
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t mark = text.find(kMark);
  const auto config = espalier::JsonObject::parse(text.substr(0, mark), "config.json");
  if (!config) return 0;
  read(*config);
  if (mark == std::string_view::npos) return 0;
  const auto changes = espalier::JsonObject::parse(text.substr(mark + kMark.size()), "overrides");
  if (!changes) return 0;
  const espalier::JsonObject merged = config->merged(*changes);
  read(merged);
  merged.never_read(*changes);
  return 0;
}
