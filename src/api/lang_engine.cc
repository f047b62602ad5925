#include "api/open_engine.h"
#include "espalier/lang.h"
#include "lang/backends/engine_backend.h"

namespace espalier::lang {

Result<std::shared_ptr<Backend>> open_engine(
    const std::string& model_path,
    const std::vector<std::pair<std::string, std::string>>& settings) {
  ESP_ASSIGN_OR_RETURN(auto engine, api::open_engine(model_path, settings));
  return engine_backend(std::shared_ptr<Engine>(std::move(engine)));
}

}  // namespace espalier::lang
