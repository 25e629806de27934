package record

import "github.com/clusterring/clusterring/tools/testkit/history"

// Histories reads the reconciles that processes of this machine have recorded in files.
func Histories(files ...string) (*history.Reader, error) {
	reader := &history.Reader{}
	for _, file := range files {
		if err := reader.ReadFile(file); err != nil {
			return nil, err
		}
	}

	return reader, nil
}
