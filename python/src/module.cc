// The extension espalier._native: the C++ frontend language under Python's names. The package's
// Python files give it signatures and documentation, and no logic.
#include "bind.h"

PYBIND11_MODULE(_native, m) {
  using namespace espalier::python;
  m.doc() = "The frontend language of Espalier; see the package espalier.";
  bind_places(m);
  bind_expressions(m);
  bind_backends(m);
  bind_engine(m);
  bind_states(m);
  bind_programs(m);
  bind_graphs(m);
}
