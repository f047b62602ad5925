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

// The texts of a setting's value, as flags have them: several of a list, none of None.
std::vector<std::string> setting_texts(const std::string& name, const py::handle& value) {
  if (value.is_none()) return {};
  if (py::isinstance<py::bool_>(value)) return {py::cast<bool>(value) ? "true" : "false"};
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    std::vector<std::string> texts;
    for (const py::handle one : value)
      for (std::string& text : setting_texts(name, one)) texts.push_back(std::move(text));
    return texts;
  }
  if (py::isinstance<py::dict>(value))
    return {py::cast<std::string>(py::module_::import("json").attr("dumps")(value))};
  const bool is_path = py::hasattr(value, "__fspath__");
  if (!py::isinstance<py::str>(value) && !py::isinstance<py::int_>(value) &&
      !py::isinstance<py::float_>(value) && !is_path)
    throw py::type_error(name + " cannot be " + py::cast<std::string>(py::repr(value)));
  return {py::cast<std::string>(py::str(value))};
}

api::NamedSettings named_settings(const py::dict& settings) {
  api::NamedSettings named;
  for (const auto& [key, value] : settings) {
    const auto name = py::cast<std::string>(key);
    for (std::string& text : setting_texts(name, value)) named.emplace_back(name, std::move(text));
  }
  return named;
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
    return made([&, named = named_settings(settings)]() -> Result<Backend> {
      ESP_ASSIGN_OR_RETURN(auto engine, api::open_engine(model_path, named));
      return lang::engine_backend(std::shared_ptr<Engine>(std::move(engine)));
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
