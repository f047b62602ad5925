// The frontend language: programs of many model calls. See src/lang/README.md.
#pragma once

#include "lang/lang.h"
