#include "grammar/schema/uri.h"

#include <algorithm>

namespace espalier::grammar {
namespace {

struct Parts {
  // with their delimiters: "http:", "//host", "?q"
  std::string_view scheme, authority, path, query;
};

Parts parts_of(std::string_view uri) {
  Parts p;
  uri = uri.substr(0, uri.find('#'));
  const size_t colon = uri.find_first_of(":/?");
  if (colon != std::string_view::npos && colon > 0 && uri[colon] == ':') {
    p.scheme = uri.substr(0, colon + 1);
    uri.remove_prefix(colon + 1);
  }
  if (uri.starts_with("//")) {
    const size_t end = std::min(uri.find_first_of("/?", 2), uri.size());
    p.authority = uri.substr(0, end);
    uri.remove_prefix(end);
  }
  const size_t mark = std::min(uri.find('?'), uri.size());
  p.path = uri.substr(0, mark);
  p.query = uri.substr(mark);
  return p;
}

std::string without_dots(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/', 1), path.size());
    const std::string_view segment = path.substr(0, end);
    const bool last = end == path.size();
    if (segment == "/." || segment == ".") {
      if (last) out += '/';
    } else if (segment == "/.." || segment == "..") {
      out.resize(out.find_last_of('/') == std::string::npos ? 0 : out.find_last_of('/'));
      if (last) out += '/';
    } else {
      out += segment;
    }
    path.remove_prefix(end);
  }
  return out;
}

}  // namespace

std::string resolved_uri(std::string_view base, std::string_view reference) {
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string fragment(reference.substr(hash));
  const Parts r = parts_of(reference.substr(0, hash)), b = parts_of(base);
  std::string out;
  if (!r.scheme.empty()) {
    out = std::string(reference.substr(0, hash));
  } else if (!r.authority.empty()) {
    out = std::string(b.scheme) + std::string(reference.substr(0, hash));
  } else {
    out = std::string(b.scheme) + std::string(b.authority);
    if (r.path.empty()) {
      out += b.path;
      out += r.query.empty() ? b.query : r.query;
    } else if (r.path.starts_with("/")) {
      out += without_dots(r.path);
      out += r.query;
    } else {
      const size_t slash = b.path.find_last_of('/');
      std::string merged(slash == std::string_view::npos ? "" : b.path.substr(0, slash + 1));
      if (slash == std::string_view::npos && !b.authority.empty()) merged = "/";
      merged += r.path;
      out += without_dots(merged);
      out += r.query;
    }
  }
  return out + fragment;
}

std::string percent_decoded(std::string_view text) {
  const auto hex = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace espalier::grammar
