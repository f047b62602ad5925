// The functions of libnghttp2 that are called, from the library loaded at run time: a server that
// speaks no HTTP/2 neither needs nor reads it. Internal to the room; includes nghttp2's header.
#pragma once

#include <nghttp2/nghttp2.h>

#include "base/status.h"

namespace espalier::net {

// Immutable; thread-safe.
struct Http2Library {
  decltype(&::nghttp2_session_callbacks_new) callbacks_new;
  decltype(&::nghttp2_session_callbacks_del) callbacks_del;
  decltype(&::nghttp2_session_callbacks_set_on_begin_headers_callback) on_begin_headers;
  decltype(&::nghttp2_session_callbacks_set_on_header_callback) on_header;
  decltype(&::nghttp2_session_callbacks_set_on_frame_recv_callback) on_frame_recv;
  decltype(&::nghttp2_session_callbacks_set_on_data_chunk_recv_callback) on_data_chunk_recv;
  decltype(&::nghttp2_session_callbacks_set_on_stream_close_callback) on_stream_close;
  decltype(&::nghttp2_option_new) option_new;
  decltype(&::nghttp2_option_del) option_del;
  // Null in releases that know no such limit; headers of those do not declare it.
  void (*set_stream_reset_rate_limit)(nghttp2_option*, uint64_t burst, uint64_t rate);
  decltype(&::nghttp2_session_server_new2) server_new;
  decltype(&::nghttp2_session_client_new) client_new;
  decltype(&::nghttp2_session_del) session_del;
  decltype(&::nghttp2_session_mem_recv) mem_recv;
  decltype(&::nghttp2_session_mem_send) mem_send;
  decltype(&::nghttp2_session_want_read) want_read;
  decltype(&::nghttp2_session_want_write) want_write;
  decltype(&::nghttp2_session_set_local_window_size) set_local_window_size;
  decltype(&::nghttp2_session_resume_data) resume_data;
  decltype(&::nghttp2_submit_settings) submit_settings;
  decltype(&::nghttp2_submit_request) submit_request;
  decltype(&::nghttp2_submit_response) submit_response;
  decltype(&::nghttp2_submit_trailer) submit_trailer;
  decltype(&::nghttp2_submit_rst_stream) submit_rst_stream;
  decltype(&::nghttp2_submit_goaway) submit_goaway;
  decltype(&::nghttp2_session_get_last_proc_stream_id) last_stream;
  decltype(&::nghttp2_strerror) text_of;

  // Loads it with the first call. kUnavailable, with the package to install, where it is missing.
  static Result<const Http2Library*> load();
};

}  // namespace espalier::net
