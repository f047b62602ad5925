#include <string_view>
#include <unordered_set>

#include "bind.h"

namespace espalier::python {
namespace {

// Set once, when the package is imported; never destroyed, for states may outlive the interpreter.
struct Package {
  std::string folder;                     // of the package's own files, with a slash
  py::object make_error;                  // (code, message, file, line) -> exception
  py::object error_class;                 // espalier.Error
  std::unordered_set<std::string> names;  // of files and functions, for Location
};
Package& package() {
  static auto* one = new Package;
  return *one;
}

const char* keep(std::string name) {
  return package().names.insert(std::move(name)).first->c_str();
}

bool is_ours(std::string_view file) {
  const std::string& folder = package().folder;
  return !folder.empty() && file.starts_with(folder);
}

lang::Location place(const py::handle& code, int line) {
  return {keep(py::cast<std::string>(code.attr("co_filename"))), static_cast<uint32_t>(line),
          keep(py::cast<std::string>(code.attr("co_name")))};
}

py::object code_of(PyFrameObject* frame) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
}

// The last line of a traceback that is the user's.
lang::Location place_of(const py::object& trace) {
  lang::Location found;
  for (py::object at = trace; at && !at.is_none(); at = at.attr("tb_next")) {
    const py::object code = at.attr("tb_frame").attr("f_code");
    if (!is_ours(py::cast<std::string>(code.attr("co_filename"))))
      found = place(code, py::cast<int>(at.attr("tb_lineno")));
  }
  return found;
}

}  // namespace

lang::Location here() {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  lang::Location found;
  while (frame != nullptr && found.line == 0) {
    const py::object code = code_of(frame);
    if (!is_ours(py::cast<std::string_view>(code.attr("co_filename"))))
      found = place(code, PyFrame_GetLineNumber(frame));
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found;
}

lang::Error error_of(const py::error_already_set& thrown) {
  const py::object& value = thrown.value();
  if (package().error_class && thrown.matches(package().error_class)) {
    const auto code = py::cast<int>(value.attr("_status"));
    return lang::Error(
        Status(static_cast<StatusCode>(code), py::cast<std::string>(value.attr("message"))),
        {keep(py::cast<std::string>(value.attr("file"))), py::cast<uint32_t>(value.attr("line")),
         ""});
  }
  const std::string kind = py::cast<std::string>(thrown.type().attr("__name__"));
  return lang::Error(error(StatusCode::kAborted, "the program threw {}: {}", kind,
                           py::cast<std::string>(py::str(value))),
                     place_of(thrown.trace()));
}

py::object exception_of(const lang::Error& error) {
  const Status& status = error.status();
  return package().make_error(static_cast<int>(status.code()),
                              std::string(status_code_name(status.code())), status.message(),
                              std::string(error.where().file), error.where().line);
}

void throw_status(Status status, const lang::Location& where) {
  throw lang::Error(std::move(status), where);
}

void bind_places(py::module_& m) {
  m.def(
      "_set_package",
      [](std::string folder, py::object error_class, py::object make_error) {
        package().folder = std::move(folder);
        package().error_class = std::move(error_class);
        package().make_error = std::move(make_error);
      },
      py::arg("folder"), py::arg("error_class"), py::arg("make_error"));
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const lang::Error& e) {
      const py::object value = exception_of(e);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
    }
  });
}

}  // namespace espalier::python
