// Package command is the command line of kubectl ring. It parses arguments, queries ringquery, and prints the answers.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/connect"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// Streams are the outputs of the program, and what it asks its surroundings.
type Streams struct {
	// Out and Err are the standard streams.
	Out, Err io.Writer
	// OutTerminal reports whether Out is a terminal.
	OutTerminal bool
	// Getenv returns a variable of the environment. Empty: it is not set.
	Getenv func(name string) string
	// Clock measures ages and pauses.
	Clock clock.WithDelayedExecution
}

// Exit codes.
const (
	// Fine: there is an answer, and it reports no problem.
	Fine = 0
	// Problem: the answer reports a problem.
	Problem = 1
	// NoAnswer: the query failed.
	NoAnswer = 2
)

// errProblem ends a command whose answer reports a problem. The answer has been printed.
var errProblem = errors.New("there is a problem")

// errPrinted ends a command that has printed its errors.
var errPrinted = errors.New("not everything could be answered")

// Run runs the program with its arguments and returns the exit code. It ends early when ctx does.
func Run(ctx context.Context, args []string, streams Streams) int {
	a := newApp(streams)
	root := a.root()
	root.SetArgs(args)
	root.SetContext(ctx)

	err := root.Execute()
	switch {
	case err == nil:
		return Fine
	case errors.Is(err, errProblem):
		return Problem
	case errors.Is(err, errPrinted):
	case strings.HasPrefix(err.Error(), "unknown command"): // cobra has no type for it
		failure.Print(streams.Err, failure.New("see kubectl ring --help", "%w", err))
	default:
		failure.Print(streams.Err, err)
	}

	return NoAnswer
}

// app is the program with its global flags.
type app struct {
	Streams

	kube    *genericclioptions.ConfigFlags
	connect connect.Options
	colour  bool
}

func newApp(streams Streams) *app {
	kube := genericclioptions.NewConfigFlags(true)
	// Omit flags that have no effect here, or that look like flags about ringquery.
	kube.Insecure, kube.TLSServerName, kube.CAFile, kube.CertFile, kube.KeyFile = nil, nil, nil, nil, nil
	kube.ImpersonateUserExtra = nil
	kube.APIServer, kube.DisableCompression, kube.ProxyURL = nil, nil, nil

	return &app{
		Streams: streams, kube: kube,
		connect: connect.Options{UserAgent: "kubectl-ring/" + Version, Clock: streams.Clock},
		colour:  streams.OutTerminal && streams.Getenv("NO_COLOR") == "" && streams.Getenv("TERM") != "dumb",
	}
}

const long = `Show which shard owns which object, and why. The answers come from ringquery, the diagnostics service of ClusterRing.

A ring (ClusterRing) distributes the objects of its resources over shards. Shards are replicas of a controller, each with a Lease.
Every object belongs to one shard. These commands show to which shard it belongs, where it is now, and what would move if the
shards changed. advise tells whether a controller needs shards at all; it asks no server, but the controller. init prints what
an operator needs to become sharded; it asks no server either.

How the server is found
  Without --endpoint, the plugin finds the Service with the label app.kubernetes.io/name=ringquery in --service-namespace, and
  connects to one of its ready pods through the API server. No port is opened on this machine. The Role ringquery-user in that
  namespace grants the permissions: to list services and pods, to create pods/portforward, and to create serviceaccounts/token
  of ringquery-reader.

How the connection is secured
  The certificate of the server is verified with --ca-file, or else with ca.crt in the ConfigMap ringquery-ca in the namespace of
  the Service, or else with the CA certificates of this machine. Your own token is not sent. Instead, the plugin requests a token
  of a service account (--service-account) that only ringquery accepts, and the answers are those that this account may get. A
  token is sent to an --endpoint on another machine only with TLS and only if the server is verified. Without a kubeconfig,
  --token is sent to the --endpoint.

Environment
  A variable sets a flag about the server that is not on the command line: KUBECTL_RING_ENDPOINT sets --endpoint, and so on with
  SERVICE_NAMESPACE, SERVICE_ACCOUNT, PLAINTEXT, CA_FILE, and SERVER_NAME. advise ignores them.

Exit codes
  0  there is an answer, and it reports no problem
  1  explain: there is a problem with the object; advise: a controller has a problem
  2  a query failed`

const examples = `  # which rings and shards exist, and what is their status
  kubectl ring list
  kubectl ring get example

  # to which shard does an object belong, and is it there
  kubectl ring locate websites/blog -n team-a
  kubectl ring explain websites/blog -n team-a

  # which objects are not where they belong
  kubectl ring assignments example --state misplaced --state unassigned

  # what would move if there were two more shards
  kubectl ring simulate example --add 2

  # follow shards as they come and go
  kubectl ring watch example

  # is it time to shard a controller
  kubectl ring advise --pods app=website-operator -n operators

  # a server on this machine
  kubectl ring list --endpoint 127.0.0.1:8090 --plaintext`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-ring",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ring"},
		Short:         "Show which shard owns which object, and why",
		Long:          long,
		Example:       examples,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       Version,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.environment(cmd); err != nil {
				return err
			}

			return a.connect.Validate()
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetVersionTemplate(versionText())
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	flags := root.PersistentFlags()
	a.kube.AddFlags(flags)
	a.connect.AddFlags(flags)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return failure.New("see "+cmd.CommandPath()+" --help", "%w", err)
	})
	root.AddCommand(a.list(), a.get(), a.locate(), a.explain(), a.assignments(), a.simulate(), a.watch(), a.advise(),
		a.initRing(), a.version(), a.completion())

	for _, cmd := range root.Commands() {
		cmd.DisableFlagsInUseLine = true
	}

	return root
}

// environment sets flags that are not on the command line from variables of the environment. No variable turns off the
// verification of the server.
func (a *app) environment(cmd *cobra.Command) error {
	flags := cmd.Flags()

	for _, name := range []string{
		"endpoint", "service-namespace", "service-account", "plaintext", "ca-file", "server-name",
	} {
		variable := "KUBECTL_RING_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))

		value := a.Getenv(variable)
		if value == "" || flags.Changed(name) {
			continue
		}

		if err := flags.Set(name, value); err != nil {
			return failure.New("correct or unset the variable", "%s: %w", variable, err)
		}
	}

	return nil
}

// arguments checks the number of arguments.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return failure.New("see "+cmd.CommandPath()+" --help", "use it as: %s", cmd.UseLine())
		}

		return nil
	}
}

// config returns the configuration of the user's cluster. Nil: there is none.
func (a *app) config() (*rest.Config, error) {
	raw, err := a.kube.ToRawKubeConfigLoader().RawConfig()
	if err != nil && !clientcmd.IsEmptyConfig(err) {
		return nil, failure.New("check --kubeconfig and KUBECONFIG", "read the kubeconfig: %w", err)
	}

	if len(raw.Clusters) == 0 && a.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return nil, nil // client-go would make up a cluster on localhost
	}

	config, err := a.kube.ToRESTConfig()
	if err != nil {
		return nil, failure.New("check --kubeconfig, KUBECONFIG, --context, --cluster and --user", "read the kubeconfig: %w",
			err)
	}

	return config, nil
}

// mapper returns the REST mapper of the cluster. Nil: there is no cluster.
func (a *app) mapper() (meta.RESTMapper, error) {
	config, err := a.config()
	if err != nil || config == nil {
		return nil, err
	}

	mapper, err := a.kube.ToRESTMapper()
	if err != nil {
		return nil, fmt.Errorf("prepare to ask the cluster for its types: %w", err)
	}

	return mapper, nil
}

// namespace returns the namespace of -n, or else that of the kubeconfig's context. Empty: there is neither.
func (a *app) namespace() (string, error) {
	if *a.kube.Namespace != "" {
		return *a.kube.Namespace, nil
	}

	config, err := a.config()
	if err != nil || config == nil {
		return "", err
	}

	namespace, _, err := a.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", failure.New("name one with -n", "read the kubeconfig's namespace: %w", err)
	}

	return namespace, nil
}

// asker queries a server.
type asker struct {
	pb.DiagnosticsServiceClient

	timeout time.Duration // of one call; 0: none
	where   func() string // describes the server
}

// ask connects to the server and calls questions.
func (a *app) ask(ctx context.Context, questions func(*asker) error) error {
	timeout, err := clientcmd.ParseTimeout(*a.kube.Timeout)
	if err != nil {
		return failure.New("write it as in 10s", "--request-timeout: %w", err)
	}

	config, err := a.config()
	if err != nil {
		return err
	}

	if config == nil && a.connect.Endpoint != "" && *a.kube.BearerToken != "" {
		a.connect.Token = *a.kube.BearerToken // without an API server, the token can only be for ringquery
	}

	a.connect.Timeout = timeout

	conn, err := connect.Dial(ctx, &a.connect, config, nil)
	if err != nil {
		return err
	}

	err = questions(&asker{pb.NewDiagnosticsServiceClient(conn), timeout, conn.Where})

	where := conn.Where()
	if closing := conn.Close(); err == nil && closing != nil {
		return fmt.Errorf("close the connection: %w", closing)
	}

	return failure.Of(err, where)
}

// oneOf returns an error if the value of a flag is not one of the known values.
func oneOf(flag, value string, known []string) error {
	if slices.Contains(known, value) {
		return nil
	}

	return failure.New("use one of "+strings.Join(known, ", "), "%s: there is no %q", flag, value)
}

// Version is the released version of this build. Set it with -ldflags "-X
// github.com/clusterring/clusterring/tools/kubectl-ring/internal/command.Version=v1.2.3". Empty: the version from go
// install.
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
		Use: "version", Short: "Show the version of this program", Args: arguments(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		Run:               func(*cobra.Command, []string) { fmt.Fprint(a.Out, versionText()) },
	}
}

// patience is how long completion waits for the server.
const patience = 3 * time.Second

// script is the program that kubectl calls to complete the arguments of this plugin.
const script = `#!/bin/sh
# kubectl calls this to complete "kubectl ring ...".
exec kubectl-ring __complete "$@"
`

func (a *app) completion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion",
		Short: "Print the script with which kubectl completes the arguments of this plugin",
		Long: `Print the script with which kubectl completes the arguments of this plugin, including the names of rings, shards, and resources.

kubectl 1.26 and later run the program kubectl_complete-ring in PATH. The completion of kubectl must be set up in your shell; see
kubectl completion --help.`,
		Example: `  kubectl ring completion >~/.local/bin/kubectl_complete-ring
  chmod +x ~/.local/bin/kubectl_complete-ring`,
		Args:              arguments(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprint(a.Out, script)
			return nil
		},
	}
}

// complete sets the completion of a flag.
func complete(cmd *cobra.Command, flag string, completion cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, completion); err != nil {
		panic(fmt.Sprintf("flag %s of %s: %v", flag, cmd.Name(), err)) // a mistake in this program
	}
}

// suggest asks the server for completions. If that fails, there are none, and shells that can show a hint show why.
func (a *app) suggest(
	cmd *cobra.Command, words func(context.Context, *asker) ([]string, error),
) ([]cobra.Completion, cobra.ShellCompDirective) {
	// The context of the command is not set during completion.
	ctx, cancel := context.WithTimeout(cmd.Root().Context(), patience)
	defer cancel()

	var found []string

	err := a.environment(cmd)
	if err == nil {
		err = a.connect.Validate()
	}

	if err == nil {
		err = a.ask(ctx, func(s *asker) error {
			var err error

			found, err = words(ctx, s)

			return err
		})
	}

	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return cobra.AppendActiveHelp(nil, "no completion: "+failure.Clean(err.Error())), cobra.ShellCompDirectiveNoFileComp
	}

	return found, cobra.ShellCompDirectiveNoFileComp
}

// suggestOf asks the server for completions from the state of a ring.
func (a *app) suggestOf(
	cmd *cobra.Command, ring string, words func(*pb.GetRingResponse) []string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.suggest(cmd, func(ctx context.Context, s *asker) ([]string, error) {
		res, err := s.GetRing(ctx, &pb.GetRingRequest{Name: ring})
		return words(res), err
	})
}

// completeRing completes the first argument, or a flag, with the names of rings.
func (a *app) completeRing(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Flags().Lookup("ring") == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	return a.suggest(cmd, func(ctx context.Context, s *asker) ([]string, error) {
		rings, err := allRings(ctx, s)
		return names(rings), err
	})
}

// completeRingThenResource completes with names of rings, then with the resources of the ring.
func (a *app) completeRingThenResource(
	cmd *cobra.Command, args []string, toComplete string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return a.completeRing(cmd, args, toComplete)
	case 1:
		return a.suggestOf(cmd, args[0], func(ring *pb.GetRingResponse) []string { return resourceNames(ring.GetRing()) })
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// names returns the names of rings or shards.
func names[T interface{ GetName() string }](all []T) []string {
	var found []string
	for _, one := range all {
		found = append(found, one.GetName())
	}

	return found
}

func resourceNames(rings ...*pb.Ring) []string {
	var names []string

	for _, ring := range rings {
		for _, r := range ring.GetResources() {
			names = append(names, qualified(r.GetGroup(), r.GetResource()))
		}
	}
	slices.Sort(names)

	return slices.Compact(names)
}

// completeShardOfArgument completes a flag with the shards of the ring that is the first argument.
func (a *app) completeShardOfArgument(
	cmd *cobra.Command, args []string, _ string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	return a.suggestOf(cmd, args[0], func(ring *pb.GetRingResponse) []string { return names(ring.GetShards()) })
}

// completeType completes TYPE/ with the resources of all rings. The server does not know the names of objects.
func (a *app) completeType(
	cmd *cobra.Command, _ []string, toComplete string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.Contains(toComplete, "/") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	found, directive := a.suggest(cmd, func(ctx context.Context, s *asker) ([]string, error) {
		rings, err := allRings(ctx, s)

		names := resourceNames(rings...)
		for i := range names {
			names[i] += "/"
		}

		return names, err
	})

	return found, directive | cobra.ShellCompDirectiveNoSpace
}
