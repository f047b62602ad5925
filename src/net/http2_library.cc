#include "net/http2_library.h"

#include <dlfcn.h>

namespace espalier::net {

namespace {

template <typename Function>
bool find_http2(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}

bool find_callbacks(void* from, Http2Library& h2) {
  return find_http2(from, "nghttp2_session_callbacks_new", h2.callbacks_new) &&
         find_http2(from, "nghttp2_session_callbacks_del", h2.callbacks_del) &&
         find_http2(from, "nghttp2_session_callbacks_set_on_begin_headers_callback",
                    h2.on_begin_headers) &&
         find_http2(from, "nghttp2_session_callbacks_set_on_header_callback", h2.on_header) &&
         find_http2(from, "nghttp2_session_callbacks_set_on_frame_recv_callback",
                    h2.on_frame_recv) &&
         find_http2(from, "nghttp2_session_callbacks_set_on_data_chunk_recv_callback",
                    h2.on_data_chunk_recv) &&
         find_http2(from, "nghttp2_session_callbacks_set_on_stream_close_callback",
                    h2.on_stream_close);
}

bool find_functions(void* from, Http2Library& h2) {
  find_http2(from, "nghttp2_option_set_stream_reset_rate_limit", h2.set_stream_reset_rate_limit);
  return find_http2(from, "nghttp2_option_new", h2.option_new) &&
         find_http2(from, "nghttp2_option_del", h2.option_del) &&
         find_http2(from, "nghttp2_session_server_new2", h2.server_new) &&
         find_http2(from, "nghttp2_session_client_new", h2.client_new) &&
         find_http2(from, "nghttp2_session_del", h2.session_del) &&
         find_http2(from, "nghttp2_session_mem_recv", h2.mem_recv) &&
         find_http2(from, "nghttp2_session_mem_send", h2.mem_send) &&
         find_http2(from, "nghttp2_session_want_read", h2.want_read) &&
         find_http2(from, "nghttp2_session_want_write", h2.want_write) &&
         find_http2(from, "nghttp2_session_set_local_window_size", h2.set_local_window_size) &&
         find_http2(from, "nghttp2_session_resume_data", h2.resume_data) &&
         find_http2(from, "nghttp2_submit_settings", h2.submit_settings) &&
         find_http2(from, "nghttp2_submit_request", h2.submit_request) &&
         find_http2(from, "nghttp2_submit_response", h2.submit_response) &&
         find_http2(from, "nghttp2_submit_trailer", h2.submit_trailer) &&
         find_http2(from, "nghttp2_submit_rst_stream", h2.submit_rst_stream) &&
         find_http2(from, "nghttp2_submit_goaway", h2.submit_goaway) &&
         find_http2(from, "nghttp2_session_get_last_proc_stream_id", h2.last_stream) &&
         find_http2(from, "nghttp2_strerror", h2.text_of);
}

Result<Http2Library> open_http2() {
  void* const library = dlopen("libnghttp2.so.14", RTLD_NOW | RTLD_LOCAL);
  Http2Library h2{};
  if (library == nullptr || !find_callbacks(library, h2) || !find_functions(library, h2))
    return fail(error(StatusCode::kUnavailable,
                      "HTTP/2 is spoken with libnghttp2, which is not installed: install it "
                      "(Debian: apt-get install libnghttp2-14)"));
  return h2;
}

}  // namespace

Result<const Http2Library*> Http2Library::load() {
  static const Result<Http2Library> loaded = open_http2();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

}  // namespace espalier::net
