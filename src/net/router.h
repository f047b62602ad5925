// Which handler answers a method and a path.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "net/http.h"

namespace espalier::net {

// Patterns are paths whose segments are literal, "{name}" (one segment) or, last, "{name*}" (one or
// more segments). Literal segments win over named ones. Filled before the server starts, then
// read-only.
class Router {
 public:
  // kAlreadyExists when the method and pattern are there. admit: may be null, which takes all.
  Status add(std::string_view method, std::string_view pattern, Handler handler,
             Admission admit = nullptr);

  struct Match {
    const Handler* handler = nullptr;  // null: no route
    const Admission* admit = nullptr;  // of that handler
    std::vector<std::pair<std::string, std::string>> params;
    std::vector<std::string> allowed;  // methods that the path has; empty: no such path
  };
  // HEAD finds GET's handler where it has none of its own.
  Match find(std::string_view method, std::string_view path) const;

 private:
  struct Route {
    std::vector<std::string> segments;
    struct Entry {
      std::string method;
      Handler handler;
      Admission admit;
    };
    std::vector<Entry> entries;
  };
  std::vector<Route> routes_;
};

}  // namespace espalier::net
