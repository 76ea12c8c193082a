// Round-to-nearest and gradual underflow for the life of an object, whatever the calling thread had set
// (torch.set_flush_denormal, for one). A thread starts with its parent's settings.
#pragma once

#include <cfenv>

namespace custom_fp {

class FpEnvironment {
    std::fenv_t saved_;

public:
    FpEnvironment() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);  // clears x86's FTZ and DAZ, AArch64's FZ
    }
    ~FpEnvironment() { std::fesetenv(&saved_); }
    FpEnvironment(const FpEnvironment&) = delete;
    FpEnvironment& operator=(const FpEnvironment&) = delete;
};

}  // namespace custom_fp
