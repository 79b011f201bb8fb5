package settings

import (
	"errors"
	"os"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"
)

// Shown gives what stands for a letter of a text that others chose: itself, unless it is a control character or the like, which a
// terminal would obey.
func Shown(r rune) rune {
	if r == '\n' || r == '\t' || unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// Explain gives the text of an error, as it may be shown, with the environment variable beside each flag that it names and that was
// set by one: who typed no such flag would look for it in vain. k is what was parsed; nil when the error is of the parsing itself,
// and has it.
func Explain(k *kong.Context, err error) string {
	text := strings.Map(Shown, err.Error())
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && k == nil {
		k = parse.Context
	}
	if k == nil || strings.Contains(text, "(from envar ") { // in which kong says so
		return text
	}
	typed := map[*kong.Flag]bool{}
	for _, p := range k.Path {
		if p.Flag != nil && !p.Resolved {
			typed[p.Flag] = true
		}
	}
	for _, f := range k.Flags() {
		for _, name := range f.Envs {
			if at := flagIn(text, f.Name); at >= 0 && !typed[f] && os.Getenv(name) != "" {
				text = text[:at] + " (from " + name + ")" + text[at:]
			}
		}
	}
	return text
}

// flagIn tells where the first mention of a flag ends; -1 when there is none.
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
