// The whole public interface of narrows.
#pragma once
#include "narrows/chat.h"
#include "narrows/error.h"
#include "narrows/generate.h"
#include "narrows/methods.h"
#include "narrows/model.h"
#include "narrows/sampler.h"
#include "narrows/session.h"

#define NARROWS_VERSION "0.1.0"
