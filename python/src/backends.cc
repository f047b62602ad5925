#include <pybind11/stl.h>

#include "api/open_engine.h"
#include "bind.h"
#include "lang/backends/engine_backend.h"

namespace espalier::python {
namespace {

using Backend = std::shared_ptr<lang::Backend>;

// What may take long (loading a model, asking a server) goes without the interpreter lock.
template <typename F>
Backend made(F&& make) {
  const lang::Location where = here();
  Result<Backend> backend = [&] {
    const py::gil_scoped_release release;
    return make();
  }();
  return value_or_throw(std::move(backend), where);
}

template <auto group, auto member>
void set(EngineConfig& config, const py::handle& value) {
  auto& field = config.*group.*member;
  using Field = std::remove_reference_t<decltype(field)>;
  if constexpr (std::is_same_v<Field, std::filesystem::path>) {
    field = py::cast<std::string>(py::str(value));
  } else {
    field = py::cast<Field>(value);
  }
}

EngineConfig engine_config(const std::string& model_path, const py::dict& settings) {
  using Setter = void (*)(EngineConfig&, const py::handle&);
  static const std::map<std::string, Setter> setters = {
      {"tokenizer_path", set<&EngineConfig::model, &ModelSettings::tokenizer_path>},
      {"dtype", set<&EngineConfig::model, &ModelSettings::dtype>},
      {"kv_cache_dtype", set<&EngineConfig::cache, &CacheSettings::kv_cache_dtype>},
      {"context_length", set<&EngineConfig::model, &ModelSettings::context_length>},
      {"mem_fraction_static", set<&EngineConfig::cache, &CacheSettings::mem_fraction_static>},
      {"max_total_tokens", set<&EngineConfig::cache, &CacheSettings::max_total_tokens>},
      {"max_running_requests",
       set<&EngineConfig::schedule, &ScheduleSettings::max_running_requests>},
      {"max_queued_requests", set<&EngineConfig::schedule, &ScheduleSettings::max_queued_requests>},
      {"chunked_prefill_size",
       set<&EngineConfig::schedule, &ScheduleSettings::chunked_prefill_size>},
      {"max_prefill_tokens", set<&EngineConfig::schedule, &ScheduleSettings::max_prefill_tokens>},
      {"page_size", set<&EngineConfig::cache, &CacheSettings::page_size>},
      {"schedule_policy", set<&EngineConfig::schedule, &ScheduleSettings::schedule_policy>},
      {"schedule_conservativeness",
       set<&EngineConfig::schedule, &ScheduleSettings::schedule_conservativeness>},
      {"disable_radix_cache", set<&EngineConfig::cache, &CacheSettings::disable_radix_cache>},
      {"enable_deterministic_inference",
       set<&EngineConfig::compute, &ComputeSettings::enable_deterministic_inference>},
      {"enable_return_hidden_states",
       set<&EngineConfig::compute, &ComputeSettings::enable_return_hidden_states>},
      {"logit_processor_library",
       set<&EngineConfig::sampling, &SamplingSettings::logit_processor_library>},
      {"disable_overlap_schedule",
       set<&EngineConfig::compute, &ComputeSettings::disable_overlap_schedule>},
      {"random_seed", set<&EngineConfig::sampling, &SamplingSettings::random_seed>},
      {"num_threads", set<&EngineConfig::compute, &ComputeSettings::num_threads>},
      {"tp_size", set<&EngineConfig::compute, &ComputeSettings::tp_size>},
  };
  EngineConfig config;
  config.model.model_path = model_path;
  for (const auto& [key, value] : settings) {
    const auto name = py::cast<std::string>(key);
    const auto setter = setters.find(name);
    if (setter == setters.end())
      throw_status(invalid_argument("an Engine has no setting \"{}\"", name), here());
    try {
      setter->second(config, value);
    } catch (const py::cast_error&) {
      throw py::type_error(name + " cannot be " + py::cast<std::string>(py::repr(value)));
    }
  }
  return config;
}

lang::Prices prices(const std::map<std::string, double>& by_name) {
  lang::Prices all;
  for (const auto& [name, dollars] : by_name) {
    if (name == "input") {
      all.input = dollars;
    } else if (name == "cached_input") {
      all.cached_input = dollars;
    } else if (name == "output") {
      all.output = dollars;
    } else {
      throw_status(
          invalid_argument("prices are of input, cached_input and output, not of {}", name),
          here());
    }
  }
  return all;
}

py::dict usage(const lang::Backend& backend) {
  const lang::Usage u = backend.usage();
  py::dict all;
  all["num_calls"] = u.num_calls;
  all["num_retries"] = u.num_retries;
  all["prompt_tokens"] = u.prompt_tokens;
  all["cached_tokens"] = u.cached_tokens;
  all["completion_tokens"] = u.completion_tokens;
  all["dollars"] = u.dollars;
  all["num_calls_saved"] = u.num_calls_saved;
  all["prompt_tokens_saved"] = u.prompt_tokens_saved;
  all["dollars_saved"] = u.dollars_saved;
  return all;
}

}  // namespace

void bind_backends(py::module_& m) {
  py::class_<lang::Backend, Backend>(m, "Backend", "What runs a program's calls.")
      // For classes of the package: the same back end under their name.
      .def(py::init([](Backend made) { return made; }), py::arg("made"))
      .def_property_readonly("name", &lang::Backend::name)
      .def("usage", usage)
      .def("flush_cache",
           [](lang::Backend& b) {
             const lang::Location where = here();
             Status done;
             {
               const py::gil_scoped_release release;
               done = b.flush_cache();
             }
             ok_or_throw(std::move(done), where);
           })
      .def("get_server_info", [](lang::Backend& b) {
        const lang::Location where = here();
        Result<std::string> info = [&] {
          const py::gil_scoped_release release;
          return b.server_info();
        }();
        return py::module_::import("json").attr("loads")(value_or_throw(std::move(info), where));
      });

  m.def("Engine", [](const std::string& model_path, const py::dict& settings) {
    EngineConfig config = engine_config(model_path, settings);
    return made([&]() -> Result<Backend> {
      if (config.model.model_path.empty()) {
        ESP_ASSIGN_OR_RETURN(config.model.model_path, api::model_folder({}));
      }
      return lang::engine_backend(config);
    });
  });
  m.def("RuntimeEndpoint",
        [](std::string base_url, std::string api_key, std::string chat_template) {
          while (base_url.ends_with('/')) base_url.pop_back();
          const lang::EndpointConfig config{.base_url = std::move(base_url),
                                            .api_key = std::move(api_key),
                                            .chat_template = std::move(chat_template)};
          return made([&] { return lang::runtime_endpoint(config); });
        });
  m.def("OpenAI", [](std::string model, std::string base_url, std::string api_key, bool is_chat,
                     bool has_extensions, const std::map<std::string, double>& dollars) {
    const lang::OpenAiConfig config{.model = std::move(model),
                                    .base_url = std::move(base_url),
                                    .api_key = std::move(api_key),
                                    .is_chat = is_chat,
                                    .has_extensions = has_extensions,
                                    .prices = prices(dollars)};
    return made([&] { return lang::openai_backend(config); });
  });
  m.def("Anthropic", [](std::string model, std::string base_url, std::string api_key,
                        const std::map<std::string, double>& dollars) {
    const lang::AnthropicConfig config{.model = std::move(model),
                                       .base_url = std::move(base_url),
                                       .api_key = std::move(api_key),
                                       .prices = prices(dollars)};
    return made([&] { return lang::anthropic_backend(config); });
  });
  m.def("set_default_backend", lang::set_default_backend, py::arg("backend").none(true));
  m.def("default_backend", lang::default_backend);
}

}  // namespace espalier::python
