"""`python -m parcel`: the `parcel` command, where its script is not on PATH."""

from parcel.cli.main import main

if __name__ == "__main__":
    main()
