package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/seed503877ad/limits/internal/settings"
)

// stdout is standard output. It keeps its first error, for run to tell: what a verb could not print is not done.
type stdout struct {
	to io.Writer
	// end ends the verb, or a watch and a long list would go on for nobody.
	end func()
	err error
}

// Write writes text for people, without what a terminal would obey: others chose much of it.
func (o *stdout) Write(text []byte) (int, error) {
	o.write(bytes.Map(settings.Shown, text))
	return len(text), o.err
}

// line writes JSON as it came.
func (o *stdout) line(json []byte) { o.write(slices.Concat(json, []byte("\n"))) }

func (o *stdout) write(text []byte) {
	if o.err != nil {
		return
	}
	if _, o.err = o.to.Write(text); o.err != nil {
		o.end()
	}
}

// oneLine gives a text as it may be shown where it must neither end a line nor a column.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return unicode.ReplacementChar
		}
		return settings.Shown(r)
	}, text)
}
