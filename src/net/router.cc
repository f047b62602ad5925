#include "net/router.h"

#include <algorithm>

namespace espalier::net {
namespace {

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> segments;
  size_t begin = path.starts_with('/') ? 1 : 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    segments.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return segments;
}

bool is_named(std::string_view segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}
bool is_rest(std::string_view segment) { return is_named(segment) && segment.ends_with("*}"); }

std::string name_of(std::string_view segment) {
  return std::string(segment.substr(1, segment.size() - (is_rest(segment) ? 3 : 2)));
}

// Literal segments that match, or -1 when the pattern does not match at all.
int match(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
          std::vector<std::pair<std::string, std::string>>& params) {
  int num_literal = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (i >= path.size()) return -1;
    if (is_rest(pattern[i])) {
      std::string rest = path[i];
      for (size_t j = i + 1; j < path.size(); ++j) rest += "/" + path[j];
      if (rest.empty()) return -1;
      params.emplace_back(name_of(pattern[i]), std::move(rest));
      return num_literal;
    }
    if (is_named(pattern[i])) {
      if (path[i].empty()) return -1;
      params.emplace_back(name_of(pattern[i]), path[i]);
    } else if (pattern[i] == path[i]) {
      ++num_literal;
    } else {
      return -1;
    }
  }
  return pattern.size() == path.size() ? num_literal : -1;
}

}  // namespace

Status Router::add(std::string_view method, std::string_view pattern, Handler handler,
                   Admission admit) {
  std::vector<std::string> segments = split(pattern);
  auto route = std::find_if(routes_.begin(), routes_.end(),
                            [&](const Route& r) { return r.segments == segments; });
  if (route == routes_.end()) {
    routes_.push_back({std::move(segments), {}});
    route = routes_.end() - 1;
  }
  for (const Route::Entry& entry : route->entries) {
    if (entry.method == method) {
      return error(StatusCode::kAlreadyExists, "route {} {} is there twice", method, pattern);
    }
  }
  route->entries.push_back({std::string(method), std::move(handler), std::move(admit)});
  return {};
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  const std::vector<std::string> segments = split(path);
  const Route* best = nullptr;
  int best_literals = -1;
  Match result;
  for (const Route& route : routes_) {
    std::vector<std::pair<std::string, std::string>> params;
    const int literals = match(route.segments, segments, params);
    if (literals <= best_literals) continue;
    best = &route;
    best_literals = literals;
    result.params = std::move(params);
  }
  if (best == nullptr) return result;
  const Route::Entry* chosen = nullptr;
  for (const Route::Entry& entry : best->entries) {
    result.allowed.push_back(entry.method);
    if (entry.method == method || (entry.method == "GET" && method == "HEAD" && chosen == nullptr))
      chosen = &entry;
  }
  if (chosen == nullptr) return result;
  result.handler = &chosen->handler;
  if (chosen->admit) result.admit = &chosen->admit;
  return result;
}

}  // namespace espalier::net
