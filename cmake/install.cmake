# cmake --install build [--prefix P]    the program, its module, configs, documents, manual, completions
# ninja -C build uninstall              removes what the last installation wrote
# (cd build && cpack)                   a Debian package; without dpkg an archive
include(GNUInstallDirs)
install(TARGETS longreach RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET longreach_gloo)
    install(TARGETS longreach_gloo LIBRARY DESTINATION ${LONGREACH_MODULES})
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/install_files.cmake.in install_files.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/install_files.cmake) # the last: it lists what was installed
add_custom_target(uninstall COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/uninstall.sh ${PROJECT_BINARY_DIR}/installed.txt
                  USES_TERMINAL VERBATIM)

find_program(DPKG_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(DPKG_SHLIBDEPS)
set(CPACK_GENERATOR TGZ)
if(DPKG_SHLIBDEPS)
    set(CPACK_GENERATOR DEB)
endif()
set(CPACK_PACKAGE_VENDOR "The longreach authors")
set(CPACK_PACKAGE_CONTACT ${CPACK_PACKAGE_VENDOR})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION # below the project's
    "Trains small transformers from a JSON file and measures their loss at contexts longer than they were trained at.")
include(CPack)
