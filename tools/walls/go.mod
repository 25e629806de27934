module github.com/clusterring/clusterring/tools/walls

go 1.26.0
