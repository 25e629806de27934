package kit

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the released version of this build. Set it with
// -ldflags "-X github.com/clusterring/clusterring/services/internal/kit.Version=v1.2.3".
var Version = "dev"

// commit returns the first digits of the commit that Go recorded in the binary, "" where it did not.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}

	revision, modified := "", ""

	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+changes"
		}
	}

	if revision == "" {
		return ""
	}

	return revision + modified
}

// versionLine is what --version prints, without the name: "dev (1a2b3c4d5e6f, go1.26.0)".
func versionLine() string {
	if c := commit(); c != "" {
		return fmt.Sprintf("%s (%s, %s)", Version, c, runtime.Version())
	}

	return fmt.Sprintf("%s (%s)", Version, runtime.Version())
}
