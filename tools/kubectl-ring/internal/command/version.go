package command

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the released version of this build. Set it with
// -ldflags "-X github.com/clusterring/clusterring/tools/kubectl-ring/internal/command.Version=v1.2.3". Empty: the version from go install.
var Version = ""

func init() {
	if Version != "" {
		return
	}

	Version = "dev"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		Version = info.Main.Version
	}
}

// versionText is what version and --version print.
func versionText() string {
	return fmt.Sprintf("kubectl-ring %s (%s, API clusterring.diagnostics.v1alpha1)\n", Version, runtime.Version())
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version of this program", Args: arguments(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		Run: func(*cobra.Command, []string) { fmt.Fprint(a.Out, versionText()) },
	}
}
