package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const howToGetPostgres = "install the PostgreSQL server (Debian and Ubuntu: postgresql; Fedora: postgresql-server; " +
	"macOS: brew install postgresql) or set TEST_DATABASE_URL to a server on which databases may be created"

// postgresBinaries returns the folder of initdb and postgres. It installs them if they are missing.
func postgresBinaries() (string, error) {
	return findOrInstall("PostgreSQL server", "postgresql", howToGetPostgres, findPostgres)
}

// findOrInstall returns the result of find. If that is "" it installs the package first, which needs apt-get and root.
func findOrInstall(what, aptPackage, howToGet string, find func() string) (string, error) {
	if found := find(); found != "" {
		return found, nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return "", fmt.Errorf("no %s found: %s", what, howToGet)
	}
	// The tests of several packages run concurrently, each in a process, and only one apt-get can run.
	unlock, err := lock(filepath.Join(os.TempDir(), "limits-testenv-apt.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if found := find(); found != "" {
		return found, nil
	}
	fmt.Fprintf(os.Stderr, "testenv: no %s found, installing one with apt-get\n", what)
	output, err := aptInstall(apt, aptPackage)
	if found := find(); found != "" {
		return found, nil
	}
	return "", fmt.Errorf("apt-get install %s: %w\n%s%s", aptPackage, err, output, howToGet)
}

func aptInstall(apt, aptPackage string) (output string, err error) {
	var out bytes.Buffer
	for _, args := range [][]string{
		{"update"}, // it fails if one of many repositories is dead, which may not matter
		{"install", "-y", "--no-install-recommends", aptPackage},
	} {
		cmd := exec.Command(apt, append([]string{"-o", "DPkg::Lock::Timeout=120"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = &out, &out
		err = cmd.Run()
	}
	return out.String(), err
}

// findPostgres returns the folder of the server's programs, or "".
func findPostgres() string {
	var dirs []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	dirs = append(dirs, newestDebian())
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, dir := range dirs {
		if dir != "" && isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres")) {
			return dir
		}
	}
	return ""
}

// newestDebian returns the folder of the highest version in the place where Debian and Ubuntu install it, which is not in
// the PATH.
func newestDebian() string {
	best, newest := "", 0
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, dir := range dirs {
		version, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err == nil && version > newest && isFile(filepath.Join(dir, "postgres")) {
			best, newest = dir, version
		}
	}
	return best
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
