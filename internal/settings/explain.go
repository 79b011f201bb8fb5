package settings

import (
	"errors"
	"os"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"
)

// Shown maps the characters of an untrusted text for a terminal. Characters that do not print, such as control characters,
// which a terminal would obey, become U+FFFD.
func Shown(r rune) rune {
	if r == '\n' || r == '\t' || unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// Explain returns the text of an error for a terminal. If the error names a flag that was set by an environment variable, the
// variable is added, because the user did not type such a flag. k is the parsed command line; nil for an error of the
// parsing itself, which carries it.
func Explain(k *kong.Context, err error) string {
	text := strings.Map(Shown, err.Error())
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && k == nil {
		k = parse.Context
	}
	// Kong has added the variable itself, or suggests a flag that the user may have meant to type.
	if k == nil || strings.Contains(text, "(from envar ") || strings.HasPrefix(text, "unknown flag ") {
		return text
	}
	for _, f := range k.Flags() {
		for _, name := range f.Envs {
			if at := flagIn(text, f.Name); at >= 0 && !typed(k.Args, f.Name) && os.Getenv(name) != "" {
				text = text[:at] + " (from " + name + ")" + text[at:]
			}
		}
	}
	return text
}

// typed reports whether a flag was typed. kong.Context.Path would lack a flag whose value cannot be parsed.
func typed(args []string, flag string) bool {
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		switch name {
		case "--" + flag:
			return true
		case "--":
			return false
		}
	}
	return false
}

// flagIn returns where the first mention of a flag ends; -1 if there is none.
func flagIn(text, name string) int {
	for from := 0; ; {
		i := strings.Index(text[from:], "--"+name)
		if i < 0 {
			return -1
		}
		from += i + len("--"+name)
		if from == len(text) || !strings.Contains("-abcdefghijklmnopqrstuvwxyz", text[from:from+1]) {
			return from
		}
	}
}
