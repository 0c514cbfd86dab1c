# Writes OUT, a source file that holds the commit of SOURCE, at every build; leaves it alone if nothing changed, so that
# nothing is compiled or linked again.
set(commit "")
find_package(Git QUIET)
if(GIT_EXECUTABLE)
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} rev-parse --short=12 HEAD
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    # An archive of the sources inside somebody else's repository has that one's commits.
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} rev-parse --show-prefix
                    OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(failed OR NOT prefix STREQUAL "")
        set(commit "")
    else()
        execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} status --porcelain --untracked-files=no
                        OUTPUT_VARIABLE changes ERROR_QUIET)
        if(NOT changes STREQUAL "")
            string(APPEND commit "+")
        endif()
    endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT [[// Made by cmake/commit.cmake.
namespace longreach {
const char* build_commit();
const char* build_commit() {
    return "@commit@";
}
}  // namespace longreach
]] @ONLY)
