#pragma once

#include "carillon/frontend/http/http_reply.h"

namespace carillon::frontend {

// The page for people (web/), with headers that keep it to its own script and style, its own server, and out
// of other pages' frames. It holds nothing of the server: whoever may see it may still see nothing else.
HttpReply admin_page_reply();

}  // namespace carillon::frontend
