// Everything that a program in the language needs.
//
//   using namespace espalier::lang;
//
//   void capital(State& s, const std::string& country) {
//     s += user("What is the capital of " + country + "?");
//     s += assistant(gen("answer", {.max_tokens = 16, .stop = "."}));
//   }
//
//   State s = run(capital, {.backend = backend}, "France");
//   std::cout << s["answer"] << "\n";
#pragma once

#include "lang/backend.h"
#include "lang/backends/http_backends.h"
#include "lang/choices.h"
#include "lang/error.h"
#include "lang/expr.h"
#include "lang/graph/graph.h"
#include "lang/graph/movement.h"
#include "lang/graph/passes.h"
#include "lang/graph/tracer.h"
#include "lang/options.h"
#include "lang/program.h"
#include "lang/recorder.h"
#include "lang/state.h"
#include "lang/typed.h"
#include "lang/value.h"
